"""Models from transformers, unmodified: loaded, walked layer by layer, and the kernels that compute them."""
