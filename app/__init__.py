"""The parts that a person sees: the page, the terminal, the readers of files. Uses only the engine's public names."""
