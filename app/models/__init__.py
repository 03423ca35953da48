"""Which models there are, what they need here, how they get onto this machine, and how one takes another's place.

Read ``switch`` first. Nothing in this folder fetches anything but ``hub``, which runs in a process of
its own and only when somebody asks for a model that is not here yet.
"""
