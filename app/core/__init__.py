"""The state of the program: the open book, chats, questions, settings."""
