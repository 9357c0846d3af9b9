"""Claims about collectives that `validate` prints."""

from lab.claims.collectives.nccl import checks as checks
