"""What `validate catalog` prints."""
