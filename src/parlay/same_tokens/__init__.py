"""What `parlay verify` checks: that a model's tokens depend on nothing but the request."""
