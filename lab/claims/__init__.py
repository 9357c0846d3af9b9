"""What `validate` prints: a folder a room, a file a claim, found by its place; see `lines.py`."""
