"""The available models: their needs on this machine, their download, and the exchange of one for another.

Read ``switch`` first. Only ``hub`` fetches models, in its own process, and only when a person asks for a model that is
not on this machine. ``starter`` and ``reader`` fetch their own packages in the same way.
"""
