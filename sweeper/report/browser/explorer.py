"""The explorer page: columns of a sweep as typed arrays that the page filters, pivots and plots.

`sweeper ui` serves the page and its columns; `report --explore` writes one file with the columns
inside. A column with few distinct values is dictionary-encoded, any other column holds 64-bit
numbers, so the front in the page equals the front of `sweeper pareto` exactly.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.contract import RentsDevices
from simulators.core.errors import UserError
from sweeper.query.pareto import FEASIBLE, alike, pareto_front
from sweeper.report.answers import Answers
from sweeper.report.browser.content import described
from sweeper.report.browser.page import environment, policy, safe_json
from sweeper.space.sql import condition, ranges
from sweeper.store.keys import keys

_HERE = Path(__file__).resolve().parent
_SCRIPTS = ("vendor/uPlot.iife.min.js", "numbers.js", "sweep.js", "explorer.js")
_STYLES = ("vendor/uPlot.min.css", "page.css", "explorer.css")
_LEVELS = 254
"""Most distinct values of a dictionary-encoded column; code 255 is a missing value."""
MOST = 50_000
"""Most rows of a page written to a file; a larger sweep is sampled, but the front is complete."""
_LIMIT = 48_000_000
"""Most characters of the columns in a file."""
_PLACE = "place_in_page"
MEETS, UNIT_COST = "meets_conditions", "at $1 an hour: "
"""Computed columns: whether a row meets the space's conditions, and costs at one dollar an hour."""


_PRICED_AT_ONCE = 8
"""Devices of one price list, whose name states their prices and has a limited length."""


@dataclass(frozen=True)
class ExploredSweep:
    """The feasible designs of a sweep as columns for the page."""

    answers: Answers
    total: int | None = None  # feasible designs of the sweep, if the rows are a sample

    @functools.cached_property
    def rows(self) -> pl.LazyFrame:
        """The feasible rows with computed columns."""
        answers, found = self.answers, self.answers.results.filter(FEASIBLE)
        if answers.where and self.limits is None:
            meets = condition(answers.where, found.collect_schema())
            found = found.with_columns(meets.fill_null(value=False).alias(MEETS))
        return found

    @functools.cached_property
    def limits(self) -> dict[str, tuple[float, float]] | None:
        """The conditions of the space as ranges of columns; None if they are no ranges."""
        found = ranges(self.answers.where) if self.answers.where else {}
        return found if found is not None and set(found) <= set(self.described) else None

    @functools.cached_property
    def described(self) -> dict[str, tuple[str, str, str]]:
        """Role, unit and description of the columns in the results."""
        known = self.answers.results.collect_schema()
        return {n: text for n, text in described(self.answers).items() if n in known}

    @functools.cached_property
    def columns(self) -> list[dict[str, Any]]:
        """The columns of the page, in the order of `column`, with the values of dictionaries."""
        schema, wanted = self.rows.collect_schema(), self.described
        texts = dict(wanted)
        if MEETS in schema:
            texts[MEETS] = ("mark", "", f"meets {self.answers.where}")
        numeric = [n for n in texts if schema[n].is_numeric() and wanted[n][0] == "metric"]
        ends = [f(pl.col(n)).alias(f"{n}|{w}") for n in numeric for w, f in _ENDS.items()]
        spans = self.rows.select(ends).collect().row(0, named=True) if ends else {}
        needed = {*self.answers.objectives, *(self.limits or ())}
        found = []
        for name, (role, unit, doc) in texts.items():
            low, high = spans.get(f"{name}|low"), spans.get(f"{name}|high")
            if name in numeric and name not in needed and low == high:
                continue
            levels = None
            if name not in numeric:
                values = _as_text(self.rows.select(pl.col(name).unique()).collect()[name])
                levels = values.drop_nulls().sort()
                if name not in needed and len(levels) < 2:
                    continue
            if levels is not None and len(levels) > _LEVELS and not schema[name].is_numeric():
                continue  # texts that differ in most rows are no axis of a picture
            is_coded = levels is not None and len(levels) <= _LEVELS
            label = self.answers.word(name) if name != MEETS else doc
            found.append(
                {
                    "name": name,
                    "label": label,
                    "role": role,
                    "unit": unit,
                    "doc": doc,
                    "levels": levels.to_list() if is_coded and levels is not None else None,
                }
            )
        costs = [n for n in self.unit_costs if any(c["name"] == n for c in found)]
        hidden = {"role": "hidden", "unit": "", "doc": "", "levels": None}
        return [*found, *({"name": UNIT_COST + n, "label": n, **hidden} for n in costs)]

    def column(self, index: int) -> bytes:
        """Return the values of a column: one byte per code, or little-endian 64-bit numbers."""
        known = self.columns[index]
        name, levels = known["name"], known["levels"]
        if name.startswith(UNIT_COST):
            return self.unit_costs[name.removeprefix(UNIT_COST)].astype("<f8").tobytes()
        values = _as_text(self.rows.select(name).collect()[name])
        if levels is None:
            return values.cast(pl.Float64).fill_null(math.nan).to_numpy().astype("<f8").tobytes()
        codes = {value: code for code, value in enumerate(levels)}
        coded = values.replace_strict(codes, default=255, return_dtype=pl.UInt8)
        return coded.to_numpy().tobytes()

    @functools.cached_property
    def rates(self) -> dict[str, float | None]:
        """Dollars per hour of each device of the sweep; empty if designs have no such price."""
        simulator, space = self.answers.simulator, self.answers.space
        if not isinstance(simulator, RentsDevices):
            return {}
        devices = [str(name) for name in dict.fromkeys(space.axes[simulator.rented])]
        prices = {n: space.axes[n][0] for n in simulator.priced}
        usd = simulator.rates(devices, prices)
        return {d: None if math.isnan(u) else u for d, u in zip(devices, usd.tolist(), strict=True)}

    @functools.cached_property
    def unit_costs(self) -> dict[str, NDArray[np.float64]]:
        """Costs at one dollar per device-hour; NaN if they are not proportional to one price.

        Costs are also computed at a different price for each device. A cost that is not the cost at
        one dollar times the price of its device depends on several devices.
        """
        simulator, space = self.answers.simulator, self.answers.space
        if not isinstance(simulator, RentsDevices) or not self.rates:
            return {}
        known = self.answers.results.collect_schema()
        names = [n for n in simulator.cost_metrics if self.answers.units[n] in ("$", "USD")]
        if not {*simulator.cost_needs, *names} <= set(known):
            return {}
        needed = self.rows.select(simulator.cost_needs).collect()
        device = _as_text(needed[simulator.rented])
        prices = {n: space.axes[n][0] for n in simulator.priced}
        found = {n: np.full(len(needed), math.nan) for n in names}
        devices = list(self.rates)
        for start in range(0, len(devices), _PRICED_AT_ONCE):
            group = devices[start : start + _PRICED_AT_ONCE]
            apart = {name: 1.5 + place for place, name in enumerate(group)}
            which = device.is_in(group)
            own = device.filter(which).replace_strict(apart, return_dtype=pl.Float64).to_numpy()
            columns = {n: needed[n].filter(which).to_arrow() for n in needed.columns}
            batch = pa.RecordBatch.from_pydict(columns)
            one, other = (
                simulator.costs(batch, {**prices, **simulator.priced_at(prices, rates)})
                for rates in (dict.fromkeys(apart, 1.0), apart)
            )
            for n in names:
                is_alone = np.isclose(other[n], one[n] * own, rtol=1e-9)
                found[n][which.to_numpy()] = np.where(is_alone, one[n], math.nan)
        return found

    @property
    def meta(self) -> dict[str, Any]:
        """What the page knows of the sweep besides its columns."""
        answers = self.answers
        rows = int(self.rows.select(pl.len()).collect().item())
        filters: dict[str, Any] = {n: {"values": [v]} for n, v in answers.usual.scenario.items()}
        for name, (low, high) in (self.limits or {}).items():
            filters[name] = {"low": low, "high": high}
        if answers.where and self.limits is None:
            filters[MEETS] = {"values": [True]}
        ends = {-math.inf: None, math.inf: None}
        for spec in filters.values():
            spec.update({k: ends.get(v, v) for k, v in spec.items() if k != "values"})
        simulator = answers.simulator
        return {
            "name": answers.name,
            "simulator": answers.space.simulator,
            "rows": rows,
            "total": rows if self.total is None else self.total,
            "objectives": dict(answers.objectives),
            "given": list(answers.given),
            "filters": filters,
            "columns": self.columns,
            "rented": simulator.rented if isinstance(simulator, RentsDevices) else "",
            "rates": self.rates,
            "unfinished": answers.unfinished,
        }

    def design(self, row: int) -> tuple[str, dict[str, Any]]:
        """Return the key and all columns of a row of the page.

        Raises:
            UserError: there is no such row.
        """
        found = self.rows.slice(row, 1).collect() if row >= 0 else pl.DataFrame()
        if found.is_empty():
            raise UserError(f"there is no design in row {row:,}")
        return keys(self.answers.store.definition, found)[0], found.row(0, named=True)

    @property
    def front_rows(self) -> list[int]:
        """The rows of the front of the scenario that the page shows first."""
        usual = self.answers.usual
        numbered = self.rows.with_row_index(_PLACE).filter(alike(usual.scenario, usual.scenario))
        found = pareto_front(numbered, usual.objectives, where=usual.where)
        return [int(row) for row in found[_PLACE]]

    def sampled(self, rows: int) -> ExploredSweep:
        """Return the complete front and evenly spread designs, `rows` in all if the front fits."""
        answers = self.answers
        total = int(self.rows.select(pl.len()).collect().item())
        if total <= rows:
            return self
        schema = answers.results.collect_schema()
        front = answers.front.select(schema.names())
        every = -(-total // max(1, rows - len(front)))
        sample = answers.results.filter(FEASIBLE).gather_every(every).collect()
        table = pl.concat([front, sample], how="vertical_relaxed").unique(
            [n for n in answers.space.axes if n in schema], maintain_order=True, keep="first"
        )
        return ExploredSweep(dataclasses.replace(answers, scanned=table.lazy()), total)


_ENDS = {"low": pl.Expr.min, "high": pl.Expr.max}


def _as_text(values: pl.Series) -> pl.Series:
    return values.cast(pl.String) if values.dtype in (pl.Categorical, pl.Enum) else values


def page(
    sweeps: Sequence[str] = (),
    *,
    chosen: str,
    embedded: Mapping[str, ExploredSweep] | None = None,
    designs: Mapping[str, Mapping[int, Any]] | None = None,
) -> str:
    """Return the explorer page.

    `sweeps` are the names that the page offers and `chosen` the sweep shown first. The columns of
    `embedded` sweeps are in the page, with the time breakdown of some `designs` by row; without
    them, the page requests both from the server that sent it.

    Raises:
        UserError: the embedded columns are too large for a page.
    """
    embedded, designs = embedded or {}, designs or {}
    script = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    blobs = {
        f"{name}/{place}": _packed(sweep.column(place), coded=column["levels"] is not None)
        for name, sweep in embedded.items()
        for place, column in enumerate(sweep.columns)
    }
    if sum(map(len, blobs.values())) > _LIMIT:
        raise UserError(
            "these columns are too large for a page; write fewer --rows, or open `sweeper ui`"
        )
    described_sweeps = {name: sweep.meta for name, sweep in embedded.items()}
    return (
        environment()
        .get_template("explorer.html")
        .render(
            chosen=chosen,
            css="\n".join((_HERE / name).read_text(encoding="utf-8") for name in _STYLES),
            js=script,
            policy=policy(script, connect="" if embedded else "'self'"),
            setup=safe_json(
                {
                    "sweeps": list(sweeps) or list(embedded),
                    "chosen": chosen,
                    "embedded": described_sweeps,
                    "designs": designs,
                }
            ),
            blobs=blobs,
        )
    )


def _packed(raw: bytes, *, coded: bool) -> str:
    """Return a column deflated, as base64; equal bytes of numbers are stored together."""
    if not coded:
        raw = np.frombuffer(raw, np.uint8).reshape(-1, 8).T.tobytes()
    return base64.b64encode(zlib.compress(raw, 9)).decode()
