"""Claims about dataflow that `validate` prints."""

from lab.claims.dataflow.timeloop import checks as checks
