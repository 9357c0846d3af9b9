"""Error reduction from measured rows, and the number of rows that would halve the error.

The square of an error is the error of the form plus a part that falls with the number of rows;
errors with all rows and with half of them tell the two apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Gain:
    """Relative errors on held-out rows, for one kind of measurement."""

    name: str
    rows: int
    before: float  # without the rows
    halved: float  # with half of them
    after: float  # with all of them

    @property
    def is_better(self) -> bool:
        """Whether the rows lower the error."""
        return self.after < self.before

    @property
    def more_rows(self) -> int | None:
        """Further rows that would halve the error; None if no number of rows would.

        >>> Gain("linear", 10, before=0.5, halved=0.2, after=0.1).more_rows
        110
        >>> Gain("linear", 10, before=0.5, halved=0.2, after=0.2).more_rows
        """
        falling = (self.halved**2 - self.after**2) * self.rows
        form = self.after**2 - falling / self.rows
        left = self.after**2 / 4.0 - max(form, 0.0)
        if falling <= 0.0 or left <= 0.0:
            return None
        return max(1, math.ceil(round(falling / left - self.rows, 3)))
