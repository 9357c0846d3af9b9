"""Claims about composition that `validate` prints."""

from lab.claims.composition.forward_passes import checks as checks
