"""Holds the KV caches of a session, places them in memory, and stores them on disk."""
