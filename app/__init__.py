"""Holds everything that a person sees: the page, the commands of the terminal, the readers of files."""
