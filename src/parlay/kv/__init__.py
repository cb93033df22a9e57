"""The paged cache: one pool of blocks, one table a request, shared prefixes, tensors of every layer group."""
