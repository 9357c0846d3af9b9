"""Measured tables: `rows.py` has the row type, its reader and its split; others adapt one table."""
