"""The page: its frame, the chat in the middle of it, the live stream that moves it, and the words on it."""
