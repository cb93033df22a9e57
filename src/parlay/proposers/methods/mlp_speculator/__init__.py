"""MLP speculator: one small layer a node, on the target's last state."""
