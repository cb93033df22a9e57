"""Families of models, one file each: the folder is the list of them."""
