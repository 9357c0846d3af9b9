"""Measurements become calibrations: `sweeper-lab fit NAME` runs a file of this package."""
