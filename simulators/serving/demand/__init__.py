"""What is asked of a deployment: arrivals, lengths, traces, sessions.

`requests.py` is the door: it makes the requests that a design point describes.
"""
