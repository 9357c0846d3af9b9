"""Scores of tools: predictions against public rows (docs/explanation/predictions.md)."""
