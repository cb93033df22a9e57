"""OpenAI's forms: requests, answers, chats, responses and tools."""
