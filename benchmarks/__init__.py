"""Benchmarks of the engine's parts and comparisons with other engines; not installed with the package."""
