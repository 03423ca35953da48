"""The available models: what they need on this machine, how they are downloaded, and how one replaces another.

Read ``switch`` first. Only ``hub`` downloads models, in its own process, and only when the user asks for a model that
is not on this machine. ``starter`` and ``reader`` download their own packages in the same way.
"""
