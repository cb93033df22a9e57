"""Target and draft models: shared layers, one file a family, a strict loader."""
