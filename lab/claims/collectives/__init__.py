"""Claims about collectives that `validate` prints."""

from lab.claims.collectives.collectives import checks as checks
