"""Loads and launches kernels, on a GPU or in Triton's interpreter."""
