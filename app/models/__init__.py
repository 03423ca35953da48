"""The available models: what they need on this machine, how they are downloaded, and how one replaces another.

Read the module ``switch`` first. ``hub`` and ``hub_gguf`` download a model in a separate process, only when the user
asks for a model that is not on this machine. ``starter`` and ``reader`` download the models with short names in the
same way.
"""
