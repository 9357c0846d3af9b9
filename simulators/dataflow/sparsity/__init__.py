"""Operands with zeros: how they are distributed and stored, and what they spare."""
