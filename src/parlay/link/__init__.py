"""One asynchronous engine, and its link to the thread or process that computes."""
