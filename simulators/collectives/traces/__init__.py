"""Graphs of compute and communication: their files, and when their operators run."""
