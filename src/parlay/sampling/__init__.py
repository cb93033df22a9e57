"""From logits to a token: filters, keyed noise, draws."""
