"""The analytic fidelity: `steady_state.py` evaluates many rows at once."""
