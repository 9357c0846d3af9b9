"""Claims about serving."""
