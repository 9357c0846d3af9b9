"""The command `compare`."""
