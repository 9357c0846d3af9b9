"""Fits of 90 % intervals: of forward passes, and of deployments whose kernels are less known."""
