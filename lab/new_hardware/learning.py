"""What more measured rows would give, by errors with all rows and with half of them.

The square of an error is what the form misses, plus what too few rows leave unsure, which falls
with their number; errors with all rows and with half of them tell the two apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Gain:
    """Errors of one kind of operator, on rows left out; relative."""

    name: str
    rows: int
    before: float
    halved: float  # with half of the rows
    after: float  # with all of them

    @property
    def is_better(self) -> bool:
        """Whether the rows are worth keeping."""
        return self.after < self.before

    @property
    def more_rows(self) -> int | None:
        """How many more rows would halve the error; None where no number of them would.

        >>> Gain("linear", 10, before=0.5, halved=0.2, after=0.1).more_rows
        110
        >>> Gain("linear", 10, before=0.5, halved=0.2, after=0.2).more_rows
        """
        unsure = (self.halved**2 - self.after**2) * self.rows
        form = self.after**2 - unsure / self.rows
        left = self.after**2 / 4.0 - max(form, 0.0)
        if unsure <= 0.0 or left <= 0.0:
            return None
        return max(1, math.ceil(round(unsure / left - self.rows, 3)))
