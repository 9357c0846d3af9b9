"""Schedules of whole networks through the memory hierarchy."""
