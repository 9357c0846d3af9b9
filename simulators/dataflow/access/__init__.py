"""Reads, fills and updates of every level, by closed forms."""
