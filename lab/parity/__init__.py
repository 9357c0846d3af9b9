"""Definitions of other simulators, where they differ from ours, for comparisons with their runs."""
