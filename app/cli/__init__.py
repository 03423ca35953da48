"""Runs the commands of ``python launch.py`` in the terminal. The module to read first is ``main``."""
