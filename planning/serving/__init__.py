"""Parts of a question about serving: its axes, its load, and calibrations by measured rows."""
