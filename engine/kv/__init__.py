"""The KV caches of a session, their placement in memory, and their storage on disk."""
