"""The probability that a design meets the deadlines of a question."""

from __future__ import annotations

import hashlib
import inspect
import math
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from sweeper.query.uncertainty import Z90, probability_within
from sweeper.questions import Question
from sweeper.report import evidence

ALL_BUT, TINY = 0.99, 1e-9
"""Largest printed probability, and the tolerance of rounding down to percent."""
EVEN = 0.5
"""Least probability of a cheaper alternative, and least share of time that is measured."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SloProbability:
    """Compute P(meets SLO) of designs and compare the result with the requested minimum."""

    question: Question
    least: float  # required probability
    band: float  # half-width of the 90 % interval where none is stated
    kept: Path | None = None  # folder of the prefilter's results, which later runs read

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a row that the probability needs."""
        times = [d.metric for d in self.question.deadlines]
        means = [d.interval for d in self.question.deadlines]
        ends = [f"{name}_{end}" for name in means for end in ("lo", "hi")]
        return tuple(dict.fromkeys((*times, *means, *ends, *self.question.excluded)))

    def misses(self, rows: pl.DataFrame) -> NDArray[np.float64]:
        """Return the factor by which rows miss the SLO or the probability; 1 or less passes."""
        return np.array([self.miss(row) for row in rows.iter_rows(named=True)], np.float64)

    def prefilter(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return a lower bound of the ratio of each point's latency to the deadline."""
        if self.question.prefilter is None:
            return np.ones(batch.num_rows)
        if self.kept is None:
            return self.question.prefilter(batch)
        source = Path(inspect.getfile(type(self.question.prefilter))).read_bytes()
        name = hashlib.blake2b(source + batch.serialize().to_pybytes(), digest_size=16).hexdigest()
        file = self.kept / f"{name}.npy"
        if file.is_file():
            ratios: NDArray[np.float64] = np.load(file, allow_pickle=False)
            return ratios
        ratios = self.question.prefilter(batch)
        self.kept.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.kept, delete=False) as stream:
            np.save(stream, ratios)
        Path(stream.name).replace(file)  # whole, or not there
        return ratios

    def miss(self, row: Row) -> float:
        """Return the factor by which a row misses the SLO or the probability."""
        deadlines = self.question.deadlines
        if any(row.get(d.metric) is None for d in deadlines):
            return math.inf
        worst = max(row[d.metric] / d.limit * self._margin(row, d) for d in deadlines)
        if any(row[name] for name in self.question.excluded):
            return float(max(worst, 2.0))
        is_met = lateness(self.question, row) <= 1.0 and self.probability(row)[0] >= self.least
        return float(min(worst, 1.0) if is_met else max(worst, math.nextafter(1.0, 2.0)))

    def _margin(self, row: Row, deadline: Any) -> float:
        """Return the factor by which a latency must stay below its deadline."""
        low, high = row.get(f"{deadline.interval}_lo"), row.get(f"{deadline.interval}_hi")
        sigma, middle = math.log1p(self.band) / Z90, 0.0
        if low and high:
            sigma = math.log(high / low) / (2 * Z90)
            middle = math.log(low * high) / 2 - math.log(row[deadline.interval])
        z = statistics.NormalDist().inv_cdf(max(self.least, 0.5))
        return max(1.0, math.exp(z * sigma + middle))

    def probability(self, row: Row) -> tuple[float, bool]:
        """Return the probability to meet all deadlines, and whether it uses stated intervals."""
        probability, stated = 1.0, True
        for d in self.question.deadlines:
            one, known = probability_within(
                row, d.metric, d.limit, interval=d.interval, band=self.band
            )
            probability, stated = probability * one, stated and known
        return probability, stated


def in_percent(probability: float) -> str:
    """Return a probability in percent, rounded down.

    >>> in_percent(0.796), in_percent(0.8), in_percent(0.9999)
    ('79 %', '80 %', '> 99 %')
    """
    return "> 99 %" if probability > ALL_BUT else f"{math.floor(100.0 * probability + TINY):.0f} %"


def is_measured(row: Row) -> bool:
    """Return whether at least half of a design's time rests on measured or fitted kernels.

    Designs that state no evidence count as measured.
    """
    return not evidence.shares_of_row(row) or evidence.by_measurements(row) >= EVEN


def lateness(question: Question, row: Row) -> float:
    """Return the largest ratio of a latency to its deadline."""
    return max(float(row[d.metric]) / d.limit for d in question.deadlines)
