"""Claims about the catalog."""
