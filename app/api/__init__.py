"""The open book for other programs: OpenAI's protocol under /v1, on the page's own port, with a key of its own."""
