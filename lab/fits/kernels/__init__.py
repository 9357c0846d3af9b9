"""Calibrations of kernels: a file each, run by `python -m lab.fits NAME`."""
