"""The parts that a person sees: the page, the terminal, the readers of files. Knows the engine by its public names
only.
"""
