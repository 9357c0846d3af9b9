"""Collectives message by message: links serve messages in turn or share themselves out fairly.

The entry point is `run.py`, which lays a collective out and runs the loop.
"""
