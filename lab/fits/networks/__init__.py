"""Fits of networks between nodes."""
