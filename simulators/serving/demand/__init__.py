"""What is asked of a deployment: arrivals, lengths, traces, sessions.

Entry point: `requests.py` makes the requests that a design point describes.
"""
