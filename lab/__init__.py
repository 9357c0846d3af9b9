"""Measured tables, fits of calibrations and accuracy claims; no simulator imports this package."""
