"""The analytic fidelity: steady states from mean lengths and queueing theory, many rows at once.

`steady_state.py` is the door.
"""
