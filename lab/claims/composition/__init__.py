"""Claims about composition that `validate` prints."""

from lab.claims.composition.passes import checks as checks
