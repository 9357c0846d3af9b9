"""What an iteration takes: tables filled by composition or from a user's file, and their lookup.

`batch_price.py` is the door: it returns the tables of a design and the kernel that reads them.
"""
