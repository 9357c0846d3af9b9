"""Simulators that are swept to see what a sweep costs: one far cheaper than it, one far dearer."""
