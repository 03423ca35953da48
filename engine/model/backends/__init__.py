"""What runs a pass: transformers' layers, a processor's program, or a GPU's."""
