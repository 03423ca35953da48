"""Makes the program's own environment and starts the program inside it. Standard library only.

Read ``start`` first. No module in this folder may import a package that has to be installed, since the launcher runs
before any is installed.
"""
