"""What is told of a run: metrics, percentiles, intervals, records, a load test's report.

`summary.py` is the door: it turns a run that has ended into the metrics of `metrics.py`.
"""
