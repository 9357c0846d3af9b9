"""Questions of `ask`, one file per simulator: flags, and the space of candidate designs."""
