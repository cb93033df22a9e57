"""Files of models, where they are found and what is in them; nothing of what is computed with them."""
