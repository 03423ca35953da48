"""Another machine's model behind the engine's own methods: how a person outgrows this one.

The chat goes to any server that speaks OpenAI's protocol (vLLM, SGLang, another Trifold). The book is the first
message of every request and never changes, so that the server's prefix cache holds it. Nothing here is used until
somebody names a server, and an address that is not this machine's needs an explicit yes.
"""
