"""Engines: `NAME.toml` lists the documented options, `NAME.py` defines `options`."""
