"""One self-contained HTML page of a sweep: the answer in words, then everything behind it.

The words, tables and bars are plain HTML and need no script; the pictures are drawn by `page.js`
from the results themselves, which travel inside the page as codes (`columns.py`). The page asks
nothing of the network.
"""

from __future__ import annotations

import datetime as dt
import html
import json
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.errors import UserError
from sweeper.query import condition
from sweeper.report.columns import Coded, coded, packed
from sweeper.report.content import Content

_HERE = Path(__file__).resolve().parent
MOST = 100_000
"""Rows a page carries; of a larger sweep the front and an even sample."""
_PACKED = 2_400_000
"""Characters of packed columns, so that a page stays under three megabytes."""


def page(content: Content, *, rows: int = MOST) -> str:
    """Return the page as HTML text.

    Args:
        content: a sweep with at least one design on its front.
        rows: how many rows the page carries at most; the front always travels whole.

    Raises:
        UserError: the front alone is larger than a page can carry.
    """
    while True:
        table, total = _rows(content, rows)
        columns = _columns(content, table)
        data = packed(columns)
        if len(data) <= _PACKED:
            break
        if len(table) <= len(content.front):
            raise UserError(f"a front of {len(content.front):,} designs is too large for a page")
        rows = max(len(content.front), int(len(table) * 0.95 * _PACKED / len(data)))
    drawn = f"{len(table):,} feasible designs."
    if len(table) < total:
        drawn = f"The front and an even sample: {len(table):,} of {total:,} feasible designs."
    parts = {
        "title": html.escape(f"{content.name}: the front of {total:,} designs"),
        "name": html.escape(content.name),
        "date": f"{dt.date.today():%Y-%m-%d}",
        "question": html.escape(content.question),
        "answer": content.answer(),
        "drawn": drawn,
        "sensitivity": content.sensitivity(),
        "waterfall": content.waterfall(),
        "table": content.table(),
        "accuracy": content.accuracy(),
        "provenance": content.provenance(),
        "css": (_HERE / "page.css").read_text(encoding="utf-8"),
        "js": (_HERE / "page.js").read_text(encoding="utf-8"),
        "meta": _json(_meta(content, columns, table)),
        "data": data,
    }
    text = (_HERE / "page.html").read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def _json(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in."""
    return json.dumps(value, default=str, separators=(",", ":")).replace("</", "<\\/")


def _meta(content: Content, columns: list[Coded], table: pl.DataFrame) -> dict[str, Any]:
    return {
        "name": content.name,
        "rows": len(table),
        "front": len(content.front),
        "chosen": content.chosen,
        "keys": [key[:10] for key in content.front["key"].to_list()],
        "objectives": dict(content.objectives),
        "axes": list(content.space.varied),
        "quantiles": content.quantiles(),
        "columns": [c.described() for c in columns],
    }


def _rows(content: Content, rows: int) -> tuple[pl.DataFrame, int]:
    """Return the front and then other feasible designs, and how many feasible ones there are."""
    good = content.results.filter(pl.col("status").cast(pl.String) == "ok")
    names = good.collect_schema().names()
    wanted = [n for n in content.columns if n in names]
    qualifies = condition(content.where, names) if content.where else pl.lit(value=True)
    chosen = good.select(*wanted, qualifies=qualifies.fill_null(value=False))
    total = int(good.select(pl.len()).collect().item())
    room = max(0, rows - len(content.front))
    every = max(1, -(-total // max(1, room)))
    sample = chosen.gather_every(every).collect() if room else chosen.head(0).collect()
    front = content.front.select(*wanted).with_columns(qualifies=pl.lit(value=True))
    table = pl.concat([front.cast(sample.schema), sample])
    return table.unique(maintain_order=True, keep="first"), total


def _columns(content: Content, table: pl.DataFrame) -> list[Coded]:
    """Return the columns worth drawing: what was varied, and every metric that moved."""
    found = []
    for name, (role, unit, doc) in content.columns.items():
        if name not in table.columns or table[name].null_count() == len(table):
            continue
        if role == "metric" and name not in content.objectives and table[name].n_unique() < 2:
            continue
        found.append(coded(table[name], role=role, unit=unit, doc=doc))
    return [*found, coded(table["qualifies"], role="mark", doc="meets the conditions of the space")]
