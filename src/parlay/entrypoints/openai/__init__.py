"""OpenAI's protocol."""
