"""Requests in, tokens out: scheduling, the step, the bookkeeping around it."""
