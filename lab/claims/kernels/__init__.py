"""Claims about kernels that `validate` prints."""

from lab.claims.kernels.fp32_kernels import checks as checks
