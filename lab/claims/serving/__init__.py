"""Claims about serving that `validate` prints."""

from lab.claims.serving.vidur import checks as checks
