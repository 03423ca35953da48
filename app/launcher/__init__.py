"""Makes the program's own environment and starts the program inside it. Standard library only.

Read ``start`` first. Nothing in this folder may import a package that has to be installed: it runs before any is.
"""
