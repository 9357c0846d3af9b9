"""Rows that a tool may predict, one file a kind: what was measured, and what is left out."""
