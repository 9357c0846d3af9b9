"""Claims about serving that `validate` prints."""

from lab.claims.serving.vidur_runs import checks as checks
