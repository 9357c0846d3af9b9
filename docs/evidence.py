"""The generated pages on accuracy and coverage; `docs/build_pages.py` writes them.

The accuracy page shows the figures that ship with the package; `sweeper-lab validate --write`
computes those. The coverage page shows the answer to every scenario, other tools beside them, when
a result leaves what a simulator knows, and which command offers what each known system offers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml  # type: ignore[import-untyped]

from docs import calibrations
from docs.calibrations import ENGINES
from docs.reference import table
from lab.claims.deployments import METRICS
from lab.scenarios import Outcome, in_short, shipped
from lab.tables.deployments import FACTS
from simulators.core.checks import Check
from simulators.core.contract import load_simulator
from simulators.core.folder import FOLDERS
from sweeper.engines.task import evaluate
from sweeper.report import evidence
from sweeper.report.evidence import shares_in_words, shares_of_row
from sweeper.space.design_space import space_of

FOLDER = Path(__file__).resolve().parent
QUESTIONS = FOLDER.parent / "tests" / "questions"
HALF = 0.5
KNOWLEDGE = """Public deployments, in percent. Default options: model, precisions, GPU, parallelism,
lengths, clients and release are known. Three own rows: default options, corrected by three measured
rows of the model, GPU, dtype and runtime, which are not tested. Three rows of a server: rows of the
same release, client and parallelism. Coverage is of the 90 % interval. Constants are those fitted
for engines and API servers."""

BLIND = """Constants fitted to rows before a day, judged on later rows: mean errors and coverage of
the 90 % interval, in percent. Engines: constants fitted to deployments before 2025-11, 2026-01 and
2026-03; kernels and API servers are as shipped. Training: all constants, fitted to releases before
2026-02 and 2026-03, without older rows of a plan that a later release has."""

OWN_ROWS = ("three own rows", "three rows of a server")

TOOLS = ("AISimulate", "LLMServingSim", "LLMCompass", "Calculon")
OTHERS = {
    "T1 data parallel": ("no", "no", "no", "yes"),
    "T2 tensor parallel": ("no", "no", "no", "yes"),
    "T3 pipelines": ("no", "no", "no", "yes"),
    "T4 formats, adapters, experts, sequences": ("no", "no", "no", "in part"),
    "I1 one request": ("yes", "yes", "yes", "no"),
    "I2 serving": ("yes", "yes", "no", "no"),
    "I3 KV cache": ("yes", "yes", "no", "no"),
    "I4 two models on one GPU": ("no", "no", "no", "no"),
    "I5 drafts, prefixes, formats, pools": ("in part", "in part", "no", "no"),
}
"""What tools document, by kind of scenario; of AISimulate also what its stored runs show."""


def accuracy_table(known: Mapping[str, Sequence[Check]]) -> str:
    """Return the accuracy table as Markdown."""
    titles = [evidence.HEADLINE_TITLES, ("---",) * len(evidence.HEADLINE_TITLES)]
    rows = [*titles, *(one.cells(known) for one in evidence.headlines())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def accuracy() -> str:
    """Return the page of the figures that travel with the package."""
    known = evidence.stored()
    parts = [
        "# Accuracy",
        "On measured rows outside every fit.",
        accuracy_table(known),
        "## By what is known of a deployment",
        KNOWLEDGE,
        by_knowledge(known),
        "### Excluded rows",
        table(("reason", "rows", "source"), excluded_rows(known)),
        "## By months since the fit",
        BLIND,
        by_months(known),
        "## Parameters and rows",
        calibrations.summary(),
    ]
    for kind in ("gpu", "model"):
        links = (
            f"[{name}](accuracy-of/{name}.md) ({sum(map(len, checks.values()))})"
            for name, checks in accuracy_by_name(kind)
        )
        parts += [f"## By {kind}", "Number of checks in brackets.", ", ".join(links)]
    for group, checks in known.items():
        parts += [f"## {group}", _checks(checks)]
    return "\n\n".join(parts) + "\n"


def accuracy_by_name(kind: str) -> Iterator[tuple[str, dict[str, list[Check]]]]:
    """Yield each GPU or model that some check names, with those checks by group."""
    known = evidence.stored()
    for name in FOLDERS[kind].names():
        found = {group: evidence.naming(checks, [name]) for group, checks in known.items()}
        if found := {group: checks for group, checks in found.items() if checks}:
            yield name, found


def accuracy_pages() -> Iterator[tuple[Path, str]]:
    """Yield file and text of the accuracy page of each GPU and each model."""
    for kind in ("gpu", "model"):
        for name, found in accuracy_by_name(kind):
            parts = [
                f"# Accuracy: {kind} `{name}`",
                "Errors on measured rows outside every fit, as `sweeper accuracy "
                f"--{kind} {name}` prints them. [All checks](../accuracy.md).",
            ]
            for group, checks in found.items():
                parts += [f"## {group}", _checks(checks)]
            yield FOLDER / "accuracy-of" / f"{name}.md", "\n\n".join(parts) + "\n"


def _checks(checks: Sequence[Check]) -> str:
    """Return checks as a table of Markdown."""
    lines = (
        (
            check.name,
            "-" if check.value is None else f"{check.value:.4g} {check.unit}".rstrip(),
            "" if check.limit is None else f"{check.limit:g}",
            check.verdict,
            f"{check.rows:,}",
            check.note,
        )
        for check in checks
    )
    return table(("check", "value", "limit", "", "rows", "note"), lines)


def by_months(known: Mapping[str, Sequence[Check]]) -> str:
    """Return errors against months since the fit, as a table of Markdown."""
    checks = {check.id: check for check in known.get("blind", ())}
    columns = {
        "TPOT": "deployments.since {}",
        "within intervals": "deployments.coverage {}",
        "dense step": "training.since dense {}",
        "MoE step": "training.since mixtures {}",
        "within step intervals": "training.coverage {}",
    }
    lines = []
    for since in ("0 to 1", "2 to 3", "4 to 5"):
        found = [checks.get(identifier.format(since)) for identifier in columns.values()]
        cells = ("-" if one is None else f"{one.value:.1f} ({one.rows:,})" for one in found)
        lines.append((since, *cells))
    return table(("months since", *(f"{name} (rows)" for name in columns)), lines)


def by_knowledge(known: Mapping[str, Sequence[Check]]) -> str:
    """Return errors of deployments by what is known of them, without and with excluded rows."""
    checks = {check.id: check for check in known.get("defaults", ())}
    statistics = {
        "mean": "mean",
        "median": "median",
        "bias": "bias",
        "within_intervals": "coverage",
    }
    titles = [f"{metric} {said}" for metric in METRICS for said in statistics.values()]
    constants = sum(one.numbers for one in calibrations.kinds() if one.what == ENGINES)
    lines = []
    for given in ("default options", "launch recipes", *OWN_ROWS):
        for kept, ending in (("without excluded rows", ""), ("all rows", "_of_all")):
            found = [
                checks.get(f"headlines.{name}{ending} {given} {metric}")
                for metric in METRICS
                for name in statistics
            ]
            values = [
                "-" if one is None or one.value is None else f"{one.value:.1f}" for one in found
            ]
            rows = f"{found[0].rows:,}" if found[0] else "-"
            lines.append((given, kept, *values, rows, str(constants)))
    return table(("known", "rows", *titles, "rows", "constants"), lines)


def excluded_rows(known: Mapping[str, Sequence[Check]]) -> Iterator[tuple[str, str, str]]:
    """Yield reason, number and source of the excluded deployments."""
    counts = {check.id: check.rows for check in known.get("defaults", ())}
    for rule in FACTS.excluded:
        rows = counts.get(f"exclusions {rule['reason']}")
        yield rule["reason"], "-" if rows is None else f"{rows:,}", rule["source"]


def answers() -> list[Outcome]:
    """Return the answer to each scenario, all of them computed."""
    with tempfile.TemporaryDirectory() as folder:
        return [one.answer(Path(folder)) for one in shipped()]


def coverage(outcomes: Sequence[Outcome]) -> str:
    """Return the coverage page: scenarios, tools, flags and commands."""
    parts = [
        scenarios(outcomes).rstrip(),
        "## Beside other tools",
        beside(outcomes),
        "## Points outside the calibrated range",
        "Each point raises a flag: a share of time with numbers `extrapolated` or from data sheets "
        "(`datasheet`), `saturated`, or the reason of an infeasible design.",
        table(("simulator", "case", "point", "flag"), map(_break, breaks())),
        "## Features of other systems, by command",
        "Cycle-level simulators, DRAM and network simulators and compilers are compared by the "
        "questions that they answer, not by their method. `tests/questions/systems.yaml` contains "
        "the files that a command reads; example files of other tools' formats are in the folder "
        "`formats/examples` of the installed package.",
        table(("system", "question", "command"), map(_system, systems())),
    ]
    return "\n\n".join(parts) + "\n"


def scenarios(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a page of Markdown."""
    misses = [f"- {o.scenario.id} {said}" for o in outcomes for said in o.misses]
    heads = ((o.scenario.id, o.scenario.title, o.verdict) for o in outcomes)
    figures = ((o.scenario.id, *f.cells, f.basis) for o in outcomes for f in o.figures)
    parts = [
        "# Scenario coverage\n\nA plausible range is a sanity check, not an accuracy target: every "
        "figure outside its range has an explanation below.",
        in_short(outcomes),
        table(("id", "scenario", "result"), heads),
        "## Figures",
        table(("id", "figure", "value", "90 %", "plausible", "basis"), figures),
        "## Figures outside their range, with explanations",
        "\n".join(misses) or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def beside(outcomes: Sequence[Outcome]) -> str:
    """Return the number of answered scenarios by kind, for this project and other tools."""
    rows = []
    for kind, theirs in OTHERS.items():
        mine = [o for o in outcomes if o.scenario.id.startswith(f"{kind.split()[0]}.")]
        rows.append((kind, f"{sum(o.supported for o in mine)} of {len(mine)}", *theirs))
    return (
        "The first 28 scenarios come from a survey of five tools. They answered 5 (and 3 in part), "
        "7 (2), 6 (2), 0 and 0 of them. The table lists other tools by their documentation; none "
        "was run on these scenarios, and no public documentation of InferaSim was found:\n\n"
        + table(("kind", "sweeper", *TOOLS), rows)
    )


def breaks() -> list[Mapping[str, Any]]:
    """Return the points outside the calibrated range, with their rows under `row`."""
    listed = yaml.safe_load((FOLDER / "breaks.yaml").read_text(encoding="utf-8"))
    return [{**one, "row": answer(one["simulator"], one["point"])} for one in listed]


def answer(simulator: str, point: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of a point."""
    space = space_of({"simulator": simulator, "axes": dict(point)})
    rows: pa.RecordBatch = evaluate(load_simulator(simulator), space.batch(np.arange(1)))
    found: Mapping[str, Any] = rows.to_pylist()[0]
    return found


def is_raised(flag: str, row: Mapping[str, Any]) -> bool:
    """Return whether a row has a flag: most of the time, a true column, or its reason."""
    if (share := row.get(f"{flag}_share")) is not None:
        return bool(share > HALF)
    return bool(row.get(flag)) or str(row.get("reason") or "").startswith(flag)


def systems() -> list[Mapping[str, Any]]:
    """Return the systems, each with a command that a test runs."""
    return _questions("systems")


def errata() -> str:
    """Return the page of published figures that are wrong, with commands that a test runs."""
    rows = []
    for one in _questions("errata"):
        source, figure, command = _system(one)
        rows.append((source, figure, one["verdict"], one["finding"].strip(), command))
    return (
        "# Errata\n\nPublished figures of simulators, and of a survey of five of them, that are "
        "wrong or cannot be reproduced. Each command prints the figures of its line; the files "
        "that it reads are in `tests/questions/errata.yaml`, and a test runs it.\n\n"
        + table(("source", "figure", "verdict", "finding", "command"), rows)
        + "\n"
    )


def _questions(theme: str) -> list[Mapping[str, Any]]:
    text = (QUESTIONS / f"{theme}.yaml").read_text(encoding="utf-8")
    found: list[Mapping[str, Any]] = yaml.safe_load(text)
    return found


def _break(one: Mapping[str, Any]) -> tuple[str, ...]:
    row = one["row"]
    point = ", ".join(f"{name}={value}" for name, value in one["point"].items())
    said = row.get("reason") or shares_in_words(shares_of_row(row))
    said = f"`{one['flag']}`: {said}" if one["flag"] not in said else said
    return one["simulator"], one["when"], f"`{point}`", said


def _system(one: Mapping[str, Any]) -> tuple[str, ...]:
    system, _, wanted = str(one["question"]).partition(": ")
    asked = one["command"]
    commands = [*one.get("before", ()), *(asked if isinstance(asked, list) else [asked])]
    return system, wanted, "<br>".join(f"`{command}`" for command in commands)
