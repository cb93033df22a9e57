"""One file for each method that can be trained, named as its proposer; see `parlay.train.trainee`."""
