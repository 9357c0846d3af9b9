"""Results of a run: metrics, percentiles, prediction intervals, request records, saturation.

Entry point: `summary.py` computes the metrics of `metrics.py` from a completed run.
"""
