"""The analytic fidelity: steady states from mean lengths and queueing theory, many rows at once.

Entry point: `steady_state.py`.
"""
