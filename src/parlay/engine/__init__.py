"""The engine: scheduling, the step, and the bookkeeping around it."""
