"""Load of a deployment: `requests.py` makes the requests of a point from `workloads.py`."""
