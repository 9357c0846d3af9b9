"""Claims about dataflow."""
