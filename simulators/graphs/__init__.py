"""Passes over whole graphs: vision, diffusion and recommendation models, and training steps.

`price.py` is the entry point; `launches.py` turns operators into kernel launches.
"""
