"""Loads unmodified transformers models, runs them layer by layer, and provides the kernels that compute them."""
