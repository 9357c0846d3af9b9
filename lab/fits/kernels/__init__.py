"""Fits of kernels, and of their errors on GPUs that were not measured."""
