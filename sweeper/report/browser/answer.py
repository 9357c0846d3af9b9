"""The first thing a report says: which design, how much, how sure, and by what."""

from __future__ import annotations

import polars as pl

from simulators.core.contract import Check
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
    """Return the design to take, its objectives with their intervals, and how sure that is."""
    found, row = content.answers, content.answers.best
    design = ", ".join(
        f"{escaped(content.word(a))} <b>{content.human(a, row[a])}</b>" for a in found.space.varied
    )
    given = [f"{content.word(n)} {found.human(n, v)}" for n, v in found.scenario.items()]
    asked = found.asked if found.how else ", ".join(given)
    begin = f"For {escaped(asked)}: take" if asked else "Take"
    share, why = _likely(content)
    tiles = "".join(_tile(content, name) for name in found.objectives)
    tiles += f'<div class="tile"><b>{share}</b><span>likely to be on the front</span></div>'
    notes = "".join(f"<p>{escaped(note)}</p>" for note in found.notes)
    more = f"<details><summary>Prices and notes</summary>{notes}</details>" if notes else ""
    progress = f'<p class="note">{escaped(found.unfinished)}.</p>' if found.unfinished else ""
    return (
        f'{progress}<p class="says">{begin} {design}.</p><div class="tiles">{tiles}</div>'
        f'<h2>How sure</h2><ul class="sure">{_accuracy_here(content)}{_time_rests_on(content)}'
        f"<li>{why}</li></ul>{more}"
        f"<p>{_why(content)}</p><p>{_best_of_each(content)}</p>"
        f"<p><code>python -m sweeper show {escaped(found.name)} {row['key'][:SHOWN]}</code></p>"
    )


def selector(content: Content) -> str:
    """Return a box for each given axis, by whose values the reader chooses a scenario."""
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
    """Return which design each scenario takes, where there are several."""
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
    some = f" {len(shown):,} of them stand here." if len(shown) < len(whole.knees) else ""
    empty = len(whole.scenarios) - len(whole.knees)
    none = f" In {empty:,} no design meets the conditions." if empty else ""
    others = (
        "A click on a row shows it in full"
        if len(content.views) == len(whole.knees)
        else f"A click shows {len(content.views)} of them in full, <code>--at</code> any"
    )
    return (
        "<details><summary>Every scenario beside the others</summary>"
        f'<p class="note">Each of {len(whole.scenarios):,} scenarios '
        f"({listed([content.word(n) for n in whole.given])}) has a front of its own; this is the "
        f"knee of each.{some}{none} {others}; <code>--across</code> seeks one design for all.</p>"
        f"{scrolled(head, lines)}</details>"
    )


def _tile(content: Content, name: str) -> str:
    """Return one objective of the design with its 90 % interval."""
    row = content.answers.best
    low, high = row.get(f"{name}_lo"), row.get(f"{name}_hi")
    said = "no interval is stated"
    if low is not None and low == high and content.answers.load:
        said = "follows from the load"
    elif low is not None and high is not None and low < high:
        said = f"{content.human(name, low)} to {content.human(name, high)}, 90 % interval"
    doc = content.columns.get(name, ("", "", ""))[2]
    return (
        f'<div class="tile" title="{escaped(doc)}"><b>{content.human(name, row[name])}</b>'
        f"<span>{escaped(content.word(name))}</span><span>{said}</span></div>"
    )


def _accuracy_here(content: Content) -> str:
    """Return how far the simulator was off for this model on this device, line by line."""
    names, known = named_facts(content.answers.simulator, content.answers.best), content.evidence
    lines = known.errors_naming(names)
    if not lines:
        none = f"No line of the accuracy table names {listed(names)}. " if names else ""
        return f"<li>{none}{known.in_short()}</li>"
    errors = "".join(f"<li>{_error(check)}</li>" for check in lines)
    return f"<li>Measured errors that name {listed(names)}:<ul>{errors}</ul></li>"


def _error(check: Check) -> str:
    """Return an error with the rows it was read on."""
    value = f"{check.value:.3g} {check.unit}".strip()
    rows = f"{check.rows:,} row{'s' if check.rows != 1 else ''}"
    limit = f", beyond its limit of {check.limit:g}" if check.ok is False else ""
    return f"{escaped(check.name)}: <b>{escaped(value)}</b> ({rows}{limit})"


def _time_rests_on(content: Content) -> str:
    found = content.answers
    said = in_words(shares_of_row(found.best))
    if not said:
        return ""
    return f"<li>Evidence: {escaped(said + weakest_in_words(found.simulator, found.best))}.</li>"


def _likely(content: Content) -> tuple[str, str]:
    """Return how likely the design is to be on the front, and what that rests on."""
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
        return "-", "Its probability to be on the front is not defined for these objectives."
    match = likely.filter(alike(found.best, found.space.axes))
    share = float(match["p_front"][0]) if len(match) else 0.0
    sources = ["the simulator's 90 % intervals"] if stated else []
    if bands:
        words = listed([content.word(n) for n in bands])
        sources.append(f"±{content.band:.0%} (90 %) for {words}")
    return (
        f"{share:.0%}",
        f"Allowing for our error ({', '.join(sources)}), it is a best compromise in "
        f"{share:.0%} of cases.",
    )


def _why(content: Content) -> str:
    found = content.answers
    equal = found.best["equivalents"]
    others = f" {equal - 1:,} other designs perform identically." if equal > 1 else ""
    met = f" among those with <code>{escaped(found.where)}</code>" if found.where else ""
    together = f"in {listed([content.word(n) for n in found.objectives])} together{met}"
    if len(found.front) == 1:
        return f"Nothing beats it {together}, and it beats or equals all others.{others}"
    return (
        f"It is the knee of the Pareto front: of {len(found.front):,} designs that nothing "
        f"beats {together}, it is nearest to the best of each.{others}"
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
