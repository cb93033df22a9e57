"""OpenAI's formats: requests, answers, chats, responses and tools."""
