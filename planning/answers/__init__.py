"""Answers of `ask` that need no sweep, one module per question."""
