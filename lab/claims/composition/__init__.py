"""Claims about composition."""
