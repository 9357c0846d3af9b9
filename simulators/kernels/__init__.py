"""Latency of one operator on one GPU, from its shape."""
