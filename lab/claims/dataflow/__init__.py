"""Claims about dataflow that `validate` prints."""

from lab.claims.dataflow.counts import checks as checks
