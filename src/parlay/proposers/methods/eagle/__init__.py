"""EAGLE: a decoder layer that predicts the target's next hidden state."""
