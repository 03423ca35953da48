"""The KV caches of a session, where they lie, and how they are kept on disk."""
