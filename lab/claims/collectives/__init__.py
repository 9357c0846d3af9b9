"""Claims about collectives."""
