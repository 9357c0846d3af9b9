"""Iteration times: `batch_price.py` returns the price tables of a point and their kernel."""
