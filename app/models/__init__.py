"""Which models there are, what they need here, how they get onto this machine, and how one takes another's place.

Read ``setup`` first. Nothing in this folder is allowed to reach the network but ``fetch``, which runs in a process of
its own and only when somebody asks for a model that is not here yet.
"""
