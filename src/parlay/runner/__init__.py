"""From a plan to flat tensors, and through a model."""
