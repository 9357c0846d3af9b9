"""Iteration times: tables filled by composition or from a user's file, and table lookup.

Entry point: `batch_price.py` returns the price tables of a design and their kernel.
"""
