"""Makes the program's own environment and starts the program inside it. Imports only the standard library.

The module to read first is ``start``. No module in this folder may import a package that has to be installed, because
the launcher runs before packages are installed.
"""
