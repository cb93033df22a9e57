"""The HTTP server: the engine behind OpenAI's protocol, what it tells about itself, and its page."""
