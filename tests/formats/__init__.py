"""Readers of formats of other tools."""
