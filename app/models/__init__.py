"""The available models: what they need on this machine, how they are downloaded, and how one replaces another.

Read ``switch`` first. ``hub`` and ``hub_gguf`` download models, in a process of their own, only when the user asks for
a model that is not on this machine. ``starter`` and ``reader`` download their own packages in the same way.
"""
