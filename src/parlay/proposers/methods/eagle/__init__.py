"""EAGLE: a decoder layer that foresees the target's next hidden state."""
