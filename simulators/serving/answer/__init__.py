"""Results of a run: `summary.py` computes metrics, `explain.py` breaks down the mean request."""
