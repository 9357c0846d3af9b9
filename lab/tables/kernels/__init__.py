"""Measured kernels as tidy rows: one adapter for each kind of reference table."""
