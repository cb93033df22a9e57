"""MLP speculator: one small layer a guess, on the target's last state."""
