"""Kernels and messages of one layer in a training step, with their times."""
