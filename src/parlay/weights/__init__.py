"""Weights as they are stored: kinds of numbers and blocks, and matrices made of them."""
