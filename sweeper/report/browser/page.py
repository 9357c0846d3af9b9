"""Write the report of a sweep as one self-contained HTML page.

Text, tables and bars are plain HTML. Scripts in this folder draw the pictures from the results,
which the page contains in encoded form (`columns.py`). The page makes no network requests.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.errors import UserError
from sweeper.query.pareto import FEASIBLE, slices
from sweeper.report.browser.answer import answer, scenarios, selector
from sweeper.report.browser.columns import Coded, coded, packed
from sweeper.report.browser.content import Content
from sweeper.report.evidence import named_facts
from sweeper.report.stacked import stacked
from sweeper.report.words import in_words
from sweeper.space.sql import condition
from sweeper.store.keys import SHOWN

_HERE = Path(__file__).resolve().parent
_SCRIPTS = ("columns.js", "drawing.js", "pictures.js", "page.js")
MOST = 100_000
"""Most rows of a page; a larger sweep is sampled evenly, but the front is complete."""
_PACKED = 2_400_000
"""Characters of packed columns, so that a page stays under three megabytes."""


def page(content: Content, *, rows: int = MOST) -> str:
    """Return the page as HTML with at most `rows` rows; the front is always complete."""
    answers, views = content.answers, content.views
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
    sizes = [len(one) for one, _ in found]
    total = found[content.place][1]
    parts = {
        "title": html.escape(f"{answers.name}: the front of {total:,} designs"),
        "name": html.escape(answers.name),
        "date": f"{dt.date.today():%Y-%m-%d}",
        "question": html.escape(content.question),
        "selector": selector(content),
        "answer": _of_each(content, map(answer, views)),
        "scenarios": scenarios(content),
        "drawn": _of_each(content, (_drawn(*one) for one in found)),
        "sensitivity": _of_each(content, map(Content.sensitivity, views)),
        "waterfall": _of_each(content, map(Content.waterfall, views)),
        "table": _of_each(content, map(Content.table, views)),
        "accuracy": content.accuracy(named_facts(answers.simulator, answers.best)),
        "provenance": content.provenance(),
        "glossary": content.glossary(),
        "css": _read("page.css"),
        "js": "\n".join(map(_read, _SCRIPTS)),
        "meta": _json(_meta(content, columns, sizes)),
        "data": data,
    }
    parts["policy"] = _policy(parts["js"])
    text = _read("page.html")
    # One pass: inserted text is not searched for placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text)


def _of_each(content: Content, said: Iterable[str]) -> str:
    """Return the text of all scenarios; only the selected scenario is visible."""
    texts = list(said)
    if len(texts) == 1:
        return texts[0]
    return "".join(
        f'<div data-view="{place}"{"" if place == content.place else " hidden"}>{text}</div>'
        for place, text in enumerate(texts)
    )


def _drawn(table: pl.DataFrame, total: int) -> str:
    """Return the number of drawn designs as a sentence."""
    if len(table) == total:
        return f"{total:,} feasible designs."
    return f"Shown: the front and an even sample, {len(table):,} of {total:,} feasible designs."


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Return a content security policy: one script, no network requests."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawing = "img-src data: blob:; style-src 'unsafe-inline'"
    nowhere = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; {nowhere}; {drawing}; script-src 'sha256-{digest}'"


def _json(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    return json.dumps(value, default=str, separators=(",", ":")).replace("<", "\\u003c")


def _meta(content: Content, columns: list[Coded], sizes: list[int]) -> dict[str, Any]:
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
    names = schema.names()
    wanted = [n for n in content.columns if n in names]
    qualifies = condition(answers.where, schema) if answers.where else pl.lit(value=True)
    chosen = [*map(pl.col, wanted), qualifies.fill_null(value=False).alias("qualifies")]
    total = answers.status.get("ok", 0)
    left = max(0, rows - len(answers.front))
    every = max(1, -(-total // max(1, left)))
    sample = _sample(answers.results, chosen, every)
    sample = sample if left else sample.head(0)
    front = answers.front.select(*wanted).with_columns(qualifies=pl.lit(value=True))
    table = pl.concat([front.cast(sample.schema), sample])
    return table.unique(maintain_order=True, keep="first"), total


def _sample(results: pl.LazyFrame, columns: Sequence[pl.Expr], every: int) -> pl.DataFrame:
    """Return columns of every `every`-th feasible row."""
    found, seen = [], 0
    for some in slices(results):
        table = some.filter(FEASIBLE).select(columns).collect()
        found.append(table.gather_every(every, offset=-seen % every))
        seen += len(table)
    return pl.concat(found)


def _columns(content: Content, table: pl.DataFrame) -> list[Coded]:
    """Return encoded columns: varied axes, objectives and metrics with several values."""
    found, objectives = [], content.answers.objectives
    for name, (role, unit, doc) in content.columns.items():
        if name not in table.columns or table[name].null_count() == len(table):
            continue
        if role == "metric" and name not in objectives and table[name].n_unique() < 2:
            continue
        found.append(coded(table[name], role=role, unit=unit, doc=doc))
    return [*found, coded(table["qualifies"], role="mark", doc="meets the conditions of the space")]
