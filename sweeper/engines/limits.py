"""Limits of time and memory per point, enforced in workers that can be killed."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path

from simulators.core.errors import UserError

ONE_THREAD = dict.fromkeys(
    ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1"
)
"""Environment of one worker of several, so that libraries do not start a thread per core."""


@dataclass(frozen=True)
class Limits:
    """Limits of a single point.

    Args:
        timeout_s: a point that takes longer becomes a row with status `timeout`.
        memory_gb: memory that may be allocated beyond what a worker holds at its start; None is
            no limit. A point that needs more becomes a row with status `error` or `crash`.
    """

    timeout_s: float = 600.0
    memory_gb: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("timeout_s", self.timeout_s), ("memory_gb", self.memory_gb)):
            if value is not None and not 0.0 < value < 1e9:
                raise UserError(f"failures.{name}={value:g}: write a number above 0")

    def hold_memory(self) -> None:
        """Set or remove the limit on what this process may allocate from now on."""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = hard
        if self.memory_gb is not None:
            most = _address_space() + int(self.memory_gb * 1e9)
        with contextlib.suppress(ValueError, OSError):  # a lower limit was set from outside
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))


UNSTATED = Limits()
"""Default limits."""


def _address_space() -> int:
    """Return the address space of this process in bytes; 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return 0
    return pages * resource.getpagesize()
