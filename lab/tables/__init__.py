"""Measured tables: `records.py` reads rows as declared; `rows.py`, `kernels.py`: kernel rows."""
