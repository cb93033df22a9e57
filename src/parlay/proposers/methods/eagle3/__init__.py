"""EAGLE-3: a decoder layer on three of the target's states, with its own output layer."""
