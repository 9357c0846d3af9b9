"""Measured tables: `records.py` reads rows as declared, `rows.py` has measured kernels."""
