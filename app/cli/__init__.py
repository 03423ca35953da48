"""The commands of ``python launch.py`` in the terminal. Read ``main`` first."""
