"""What is not known for sure: chances of a limit, and functions of which a few values are known."""
