"""The models on this machine: fetching, listing, describing and removing them. Without torch."""
