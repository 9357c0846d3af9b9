"""Collectives message by message: links serve messages in turn or share themselves out fairly.

`run.py` is the door: it lays a collective out and runs the loop.
"""
