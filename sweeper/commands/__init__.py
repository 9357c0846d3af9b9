"""The commands: each module has a `main` that returns an exit code."""
