"""Fits to measured training steps."""
