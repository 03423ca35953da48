"""The three KV caches: full (every token), retrieval (chosen chunks and the recent tail), streaming (the draft's)."""
