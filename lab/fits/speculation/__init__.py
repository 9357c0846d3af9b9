"""Fits of what speculative decoding brings."""
