"""How much time and memory one point may take, in workers that can be killed."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path

from simulators.core.errors import UserError

ONE_THREAD = dict.fromkeys(
    ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1"
)
"""What libraries read that would otherwise start a thread per core, in one worker of several."""


@dataclass(frozen=True)
class Limits:
    """What a point alone may take.

    Args:
        timeout_s: a point that takes longer becomes a row with status `timeout`.
        memory_gb: what may be allocated beyond what a worker holds at its start; more becomes a
            row with status `error`, or `crash` where the code that asked cannot be told. None is no
            limit.
    """

    timeout_s: float = 600.0
    memory_gb: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("timeout_s", self.timeout_s), ("memory_gb", self.memory_gb)):
            if value is not None and not 0.0 < value < 1e9:
                raise UserError(f"failures.{name}={value:g}: write a number above 0")

    def hold_memory(self) -> None:
        """Bound what this process may allocate from now on, or take the bound away."""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = hard
        if self.memory_gb is not None:
            most = _address_space() + int(self.memory_gb * 1e9)
        with contextlib.suppress(ValueError, OSError):  # a lower limit was set from outside
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))


UNSTATED = Limits()
"""What holds where nothing is said."""


def _address_space() -> int:
    """Return the bytes of address space this process holds; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return 0
    return pages * resource.getpagesize()
