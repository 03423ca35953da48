"""Holds everything that a person sees: the page, the commands of the terminal, the readers of files. Uses only the
engine's public names.
"""
