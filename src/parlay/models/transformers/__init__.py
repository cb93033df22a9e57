"""Models that classes of transformers compute, with this engine's attention and linear layers."""
