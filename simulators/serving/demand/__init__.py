"""Load of a deployment: arrivals, request lengths, traces and sessions.

Entry point: `requests.py` makes the requests that a design point describes.
"""
