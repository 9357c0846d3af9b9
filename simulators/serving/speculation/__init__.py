"""Speculative decoding: tokens are drafted cheaply, and one pass of the model checks all of them.

`acceptance` says how many drafted tokens the model agrees with, `drafter` what drafts them and what
that holds in memory, `price` what an iteration of both takes.
"""
