"""Speculative methods, one file each: the folder is the list of them."""
