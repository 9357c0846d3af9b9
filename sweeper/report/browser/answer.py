"""First section of the report: the best design, its objectives and their confidence."""

from __future__ import annotations

import polars as pl

from simulators.core.checks import Check
from simulators.core.errors import UserError
from sweeper.query.pareto import alike
from sweeper.query.uncertainty import probable_front
from sweeper.report.browser.content import Content
from sweeper.report.browser.markup import escaped, listed, scrolled
from sweeper.report.evidence import named_facts
from sweeper.report.shares import in_words, shares_of_row, weakest_in_words
from sweeper.store.keys import SHOWN

_DRAWS = 400
_SCENARIOS = 500
"""Scenarios listed at most, evenly spread."""


def answer(content: Content) -> str:
    """Return the best design, its objectives with prediction intervals, and the confidence."""
    found, row = content.answers, content.answers.best
    design = ", ".join(
        f"{escaped(content.word(a))} <b>{content.human(a, row[a])}</b>" for a in found.space.varied
    )
    given = [f"{content.word(n)} {found.human(n, v)}" for n, v in found.scenario.items()]
    asked = found.asked if found.how else ", ".join(given)
    begin = f"For {escaped(asked)}: take" if asked else "Take"
    share, why = _likely(content)
    tiles = "".join(_tile(content, name) for name in found.objectives)
    tiles += f'<div class="tile"><b>{share}</b><span>P(on the Pareto front)</span></div>'
    notes = "".join(f"<p>{escaped(note)}</p>" for note in found.notes)
    more = f"<details><summary>Prices and notes</summary>{notes}</details>" if notes else ""
    progress = f'<p class="note">{escaped(found.unfinished)}.</p>' if found.unfinished else ""
    return (
        f'{progress}<p class="says">{begin} {design}.</p><div class="tiles">{tiles}</div>'
        f'<h2>Confidence</h2><ul class="sure">{_accuracy_here(content)}{_time_rests_on(content)}'
        f"<li>{why}</li></ul>{more}"
        f"<p>{_why(content)}</p><p>{_best_of_each(content)}</p>"
        f"<p><code>python -m sweeper show {escaped(found.name)} {row['key'][:SHOWN]}</code></p>"
    )


def selector(content: Content) -> str:
    """Return a selection box per scenario axis."""
    views, whole = content.views, content.whole
    if whole is None or len(views) < 2:
        return ""
    boxes = []
    for name in whole.given:
        values = dict.fromkeys(v.answers.human(name, v.answers.scenario[name]) for v in views)
        own = content.answers.human(name, content.answers.scenario[name])
        options = "".join(
            f"<option{' selected' if value == own else ''}>{escaped(value)}</option>"
            for value in values
        )
        boxes.append(f"<label>{escaped(content.word(name))} <select>{options}</select></label>")
    return f'<div class="controls" id="scenario">{"".join(boxes)}</div>'


def scenarios(content: Content) -> str:
    """Return the table of each scenario's knee; empty for a single scenario."""
    whole = content.whole
    if whole is None or not whole.given:
        return ""
    chosen = [n for n in whole.space.varied if n not in whole.given]
    names = list(dict.fromkeys([*whole.given, *chosen, *whole.objectives]))
    head = "".join(f"<th>{escaped(content.word(n))}</th>" for n in names)
    shown = whole.knees.gather_every(max(1, -(-len(whole.knees) // _SCENARIOS)))
    places = {
        tuple(view.answers.scenario[n] for n in whole.given): place
        for place, view in enumerate(content.views)
    }
    lines = []
    for row in shown.iter_rows(named=True):
        place = places.get(tuple(row[n] for n in whole.given))
        opens = "" if place is None else f' data-opens="{place}" tabindex="0"'
        cells = "".join(f"<td>{content.human(n, row[n])}</td>" for n in names)
        lines.append(f"<tr{opens}>{cells}</tr>")
    some = f" The table lists {len(shown):,} scenarios." if len(shown) < len(whole.knees) else ""
    empty = len(whole.scenarios) - len(whole.knees)
    none = f" In {empty:,} scenarios no design meets the conditions." if empty else ""
    others = (
        "Click a row for the full scenario"
        if len(content.views) == len(whole.knees)
        else f"Click a row for one of {len(content.views)} scenarios; <code>--at</code> selects any"
    )
    return (
        "<details><summary>All scenarios</summary>"
        f'<p class="note">Each of {len(whole.scenarios):,} scenarios '
        f"({listed([content.word(n) for n in whole.given])}) has a separate Pareto front; "
        f"the table shows the knees.{some}{none} {others}; "
        "<code>--across</code> selects one design for all scenarios.</p>"
        f"{scrolled(head, lines)}</details>"
    )


def _tile(content: Content, name: str) -> str:
    """Return one objective of the design with the 90 % prediction interval."""
    row = content.answers.best
    low, high = row.get(f"{name}_lo"), row.get(f"{name}_hi")
    said = "no prediction interval"
    if low is not None and low == high and content.answers.load:
        said = "determined by the load"
    elif low is not None and high is not None and low < high:
        said = (
            f"{content.human(name, low)} to {content.human(name, high)}, 90 % prediction interval"
        )
    doc = content.columns.get(name, ("", "", ""))[2]
    return (
        f'<div class="tile" title="{escaped(doc)}"><b>{content.human(name, row[name])}</b>'
        f"<span>{escaped(content.word(name))}</span><span>{said}</span></div>"
    )


def _accuracy_here(content: Content) -> str:
    """Return the simulator's errors on measured rows of this model or device."""
    names, known = named_facts(content.answers.simulator, content.answers.best), content.evidence
    lines = known.errors_naming(names)
    if not lines:
        none = f"No measured rows name {listed(names)}. " if names else ""
        return f"<li>{none}{known.in_short()}</li>"
    errors = "".join(f"<li>{_error(check)}</li>" for check in lines)
    return f"<li>Errors on measured rows of {listed(names)}:<ul>{errors}</ul></li>"


def _error(check: Check) -> str:
    """Return an error with the number of measured rows."""
    value = f"{check.value:.3g} {check.unit}".strip()
    rows = f"{check.rows:,} row{'s' if check.rows != 1 else ''}"
    limit = f", limit {check.limit:g} failed" if check.ok is False else ""
    return f"{escaped(check.name)}: <b>{escaped(value)}</b> ({rows}{limit})"


def _time_rests_on(content: Content) -> str:
    found = content.answers
    said = in_words(shares_of_row(found.best))
    if not said:
        return ""
    said += weakest_in_words(found.simulator, found.best)
    return f"<li>Time by evidence: {escaped(said)}.</li>"


def _likely(content: Content) -> tuple[str, str]:
    """Return P(on the front) of the design, and the intervals used."""
    found = content.answers
    stated = [
        n
        for n in found.objectives
        if f"{n}_lo" in found.front.columns and not found.front[f"{n}_lo"].has_nulls()
    ]
    bands = {n: content.band for n in found.objectives if n not in stated}
    try:
        likely = probable_front(
            found.results, found.objectives, bands, where=found.where, draws=_DRAWS, limit=5_000
        )
    except UserError:  # an objective that no logarithm describes
        return "-", "P(on the Pareto front) is not defined for these objectives."
    match = likely.filter(alike(found.best, found.space.axes))
    share = float(match["p_front"][0]) if len(match) else 0.0
    sources = ["90 % prediction intervals"] if stated else []
    if bands:
        words = listed([content.word(n) for n in bands])
        sources.append(f"±{100 * content.band:.0f} % assumed for {words}")
    return (
        f"{100 * share:.0f} %",
        f"P(on the Pareto front) = {100 * share:.0f} %, given the prediction errors "
        f"({', '.join(sources)}).",
    )


def _why(content: Content) -> str:
    found = content.answers
    equal = found.best["equivalents"]
    others = f" {equal - 1:,} other designs perform identically." if equal > 1 else ""
    met = f" among those with <code>{escaped(found.where)}</code>" if found.where else ""
    together = f"in {listed([content.word(n) for n in found.objectives])} together{met}"
    if len(found.front) == 1:
        return f"No design is better {together}: the front has one design.{others}"
    return (
        f"The design is the knee of the Pareto front: of {len(found.front):,} non-dominated "
        f"designs {together}, the knee is nearest to the best value of each objective.{others}"
    )


def _best_of_each(content: Content) -> str:
    found = content.answers
    said, front, best = [], found.front, found.best
    for name, direction in found.objectives.items():
        value = front[name].min() if direction == "min" else front[name].max()
        row = front.filter(pl.col(name) == value).row(0, named=True)
        differs = [
            f"{escaped(content.word(a))} {content.human(a, row[a])}"
            for a in found.space.varied
            if row[a] != best[a]
        ]
        how = " with " + ", ".join(differs) if differs else ", the same design"
        word = "Lowest" if direction == "min" else "Highest"
        said.append(f"{word} {escaped(content.word(name))}: {content.human(name, value)}{how}.")
    return " ".join(said)
