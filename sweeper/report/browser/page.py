"""Write the HTML report of a sweep, and the page of a running sweep; both are self-contained.

The templates `page.html` and `live.html` hold the text. Scripts in this folder draw the pictures of
the report from encoded columns: two bytes per value, deflated, as base64. A column with few
distinct values is dictionary-encoded exactly; other columns are rounded to 65,534 steps of a linear
or logarithmic scale. Low and high bytes are stored as separate planes, which compress better.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulators.core.errors import UserError
from sweeper.query.fronts import Matrix
from sweeper.query.pareto import FEASIBLE, sampled
from sweeper.report.answers import stacked
from sweeper.report.browser.content import Content
from sweeper.report.evidence import HEADLINE_TITLES, headlines
from sweeper.report.progress import Watch
from sweeper.space.sql import condition
from sweeper.store.keys import SHOWN
from sweeper.text import in_words

if TYPE_CHECKING:
    import jinja2

_HERE = Path(__file__).resolve().parent
_SCRIPTS = ("numbers.js", "columns.js", "drawing.js", "pictures.js", "page.js")
MOST = 100_000
"""Most rows of a page; a larger sweep is sampled evenly, but the front is complete."""
_PACKED = 2_400_000
"""Characters of packed columns, so that a page stays under three megabytes."""
_LISTED = 1024
"""Most distinct values of a dictionary-encoded column."""
_STEPS, _MISSING = 65_534, 65_535
"""The highest code of a scale, and the code of a missing value."""
_WIDTH, _HEIGHT, _EDGE, _DOTS = 720, 360, 12, 5_000
"""Size and margin of the live picture, and most designs drawn."""


def page(content: Content, *, rows: int = MOST) -> str:
    """Return the report as HTML with at most `rows` rows; the front is always complete."""
    views = content.views
    least = sum(len(view.answers.front) for view in views)
    while True:
        found = [_rows(view, rows // len(views)) for view in views]
        table = stacked([(v.answers, one) for v, (one, _) in zip(views, found, strict=True)])
        columns = _columns(content, table)
        data = packed(columns)
        if len(data) <= _PACKED:
            break
        if len(table) <= least:
            raise UserError(f"a front of {least:,} designs is too large for a page")
        rows = max(least, int(len(table) * 0.95 * _PACKED / len(data)))
    sizes = [(len(one), total) for one, total in found]
    script = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    known = content.evidence
    templates = environment()
    templates.filters["column"] = content.word
    return templates.get_template("page.html").render(
        here=content,
        views=views,
        whole=content.whole,
        sizes=sizes,
        shown=SHOWN,
        date=f"{dt.date.today():%Y-%m-%d}",
        headline_titles=HEADLINE_TITLES,
        headlines=[one.cells(known.by_group) for one in headlines() if one.group in known.groups],
        css=(_HERE / "page.css").read_text(encoding="utf-8"),
        js=script,
        policy=policy(script),
        meta=safe_json(_meta(content, columns, [size for size, _ in sizes])),
        data=data,
    )


def live(watch: Watch, every_s: float, over: str) -> str:
    """Return progress and front of a running sweep as HTML, reloaded every `every_s` seconds.

    `over` says why the run ended, empty for a running one. `over` must be determined before the
    last `Watch.look`, so that no part is missed.
    """
    front = watch.progress.front()
    return (
        environment()
        .get_template("live.html")
        .render(
            answers=watch.answers,
            progress=watch.progress,
            names=list(watch.answers.objectives),
            front=front.tolist(),
            dots=_dots(front),
            width=_WIDTH,
            height=_HEIGHT,
            every_s=max(1, every_s),
            over=over,
        )
    )


def environment() -> jinja2.Environment:
    """Return the environment of the templates in this folder."""
    import jinja2  # here: commands that write no page start without it

    loader = jinja2.FileSystemLoader(_HERE)
    found = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters["listed"] = listed
    return found


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else str(last)


def _dots(front: Matrix) -> list[list[float]]:
    """Return picture coordinates of the first two objectives, on logarithmic axes if positive."""
    if not len(front) or front.shape[1] < 2:
        return []
    values = front[:: -(-len(front) // _DOTS), :2]
    values = np.where((values > 0).all(axis=0), np.log(np.maximum(values, 1e-300)), values)
    low, high = values.min(axis=0), values.max(axis=0)
    x, y = ((values - low) / np.where(high > low, high - low, 1.0)).T
    places = [_EDGE + x * (_WIDTH - 2 * _EDGE), _HEIGHT - _EDGE - y * (_HEIGHT - 2 * _EDGE)]
    return np.column_stack(places).tolist()  # type: ignore[no-any-return]


def policy(script: str, connect: str = "") -> str:
    """Return a content security policy: one script, and requests to `connect` alone."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawing = "img-src data: blob:; style-src 'unsafe-inline'"
    nowhere = "base-uri 'none'; form-action 'none'"
    requests = f"; connect-src {connect}" if connect else ""
    return f"default-src 'none'; {nowhere}; {drawing}; script-src 'sha256-{digest}'{requests}"


def safe_json(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    return json.dumps(value, default=str, separators=(",", ":")).replace("<", "\\u003c")


def _meta(content: Content, columns: list[EncodedColumn], sizes: list[int]) -> dict[str, Any]:
    answers, given = content.answers, content.whole.given if content.whole else ()
    views = [
        {
            "at": [view.answers.human(n, view.answers.scenario[n]) for n in given],
            "rows": size,
            "front": len(view.answers.front),
            "chosen": view.answers.knee,
            "keys": [key[:SHOWN] for key in view.answers.front["key"].to_list()],
        }
        for view, size in zip(content.views, sizes, strict=True)
    ]
    return {
        **views[content.place],
        "name": answers.name,
        "rows": sum(sizes),
        "views": views,
        "view": content.place,
        "objectives": dict(answers.objectives),
        "axes": list(answers.space.varied),
        "quantiles": content.quantiles(),
        "stems": {stem: in_words(stem) for stem in content.quantiles()},
        "load": answers.load,
        "columns": [{**c.described(), "label": content.word(c.name)} for c in columns],
    }


def _rows(content: Content, rows: int) -> tuple[pl.DataFrame, int]:
    """Return the front and sampled feasible designs, and the number of feasible designs."""
    answers = content.answers
    schema = answers.results.collect_schema()
    wanted = [n for n in content.columns if n in schema]
    qualifies = condition(answers.where, schema) if answers.where else pl.lit(value=True)
    chosen = [*map(pl.col, wanted), qualifies.fill_null(value=False).alias("qualifies")]
    total = answers.status.get("ok", 0)
    left = max(0, rows - len(answers.front))
    feasible = answers.results.filter(FEASIBLE).select(chosen)
    sample = pl.concat(sampled(feasible, max(1, -(-total // max(1, left)))))
    sample = sample if left else sample.head(0)
    front = answers.front.select(*wanted).with_columns(qualifies=pl.lit(value=True))
    table = pl.concat([front.cast(sample.schema), sample])
    return table.unique(maintain_order=True, keep="first"), total


def _columns(content: Content, table: pl.DataFrame) -> list[EncodedColumn]:
    found, objectives = [], content.answers.objectives
    for name, (role, unit, doc) in content.columns.items():
        if name not in table.columns or table[name].null_count() == len(table):
            continue
        if role == "metric" and name not in objectives and table[name].n_unique() < 2:
            continue
        found.append(encoded(table[name], role=role, unit=unit, doc=doc))
    doc = "meets the conditions of the space"
    return [*found, encoded(table["qualifies"], role="mark", doc=doc)]


@dataclass(frozen=True)
class EncodedColumn:
    """One encoded column of the page.

    `levels` lists the values (codes are positions), or is empty where codes are steps between `low`
    and `high`, logarithms on a logarithmic scale.
    """

    name: str
    role: str
    unit: str
    doc: str
    levels: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    codes: NDArray[np.uint16] = field(default_factory=lambda: np.empty(0, np.uint16))

    def described(self) -> dict[str, Any]:
        """Return everything but the codes, for JSON."""
        left = ("codes", "low", "high", "log") if self.levels else ("codes", "levels")
        return {name: value for name, value in vars(self).items() if name not in left}


def encoded(column: pl.Series, *, role: str, unit: str = "", doc: str = "") -> EncodedColumn:
    """Return a column as codes."""
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype.is_float():
        column = column.fill_nan(None)
    levels = column.drop_nulls().unique().sort()
    name = column.name
    if len(levels) <= _LISTED or not column.dtype.is_numeric():
        table = pl.DataFrame({"value": levels, "code": np.arange(len(levels), dtype=np.uint16)})
        joined = pl.DataFrame({"value": column}).join(
            table, on="value", how="left", maintain_order="left"
        )
        codes = joined["code"].fill_null(_MISSING).to_numpy().astype(np.uint16)
        return EncodedColumn(name, role, unit, doc, tuple(map(_plain, levels)), codes=codes)
    values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    log = low > 0 and high > 20 * low
    if log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    steps = np.rint((values - low) / (high - low) * _STEPS)
    codes = np.where(np.isnan(steps), _MISSING, steps).astype(np.uint16)
    return EncodedColumn(name, role, unit, doc, low=low, high=high, log=log, codes=codes)


def packed(columns: list[EncodedColumn]) -> str:
    """Return the codes of all columns, deflated, as base64."""
    planes = b"".join(
        (c.codes & 0xFF).astype(np.uint8).tobytes() + (c.codes >> 8).astype(np.uint8).tobytes()
        for c in columns
    )
    return base64.b64encode(zlib.compress(planes, 9)).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
