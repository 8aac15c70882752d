"""The engine behind HTTP: OpenAI's audio API, sockets, a page, and what it takes to run it for others."""
