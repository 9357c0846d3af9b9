"""Engines, two files each: `NAME.toml`, its documented options, and `NAME.py` with `options`."""
