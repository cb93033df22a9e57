"""The models on this machine: fetching them, listing them, telling what they are, removing them. Without torch."""
