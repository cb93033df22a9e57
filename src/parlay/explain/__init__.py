"""What `parlay explain` computes: the time of a model's passes on this machine, and where speculation pays."""
