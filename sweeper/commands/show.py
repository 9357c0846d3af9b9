"""The commands `list`, `show` and `accuracy`: what the package knows, by name."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import re
from pathlib import Path

from simulators.core.checks import Check
from simulators.core.contract import Describes, load_simulator
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import columns_of, option_groups
from simulators.core.folder import FOLDERS, SIMULATORS, reader
from sweeper import engines, samplers
from sweeper.commands.design import show
from sweeper.commands.flags import parse
from sweeper.report.evidence import headlines, naming, stored
from sweeper.report.tables import print_table, print_words
from sweeper.space.design_space import objectives, space_of, where
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import about, parse_space, read_space
from sweeper.text import human

_INDENT = " " * 27  # of the text beside a name
_LAUNCH, _LAUNCHES = "training_launch", (".sh", ".bash", ".toml")
_RECIPE, _RECIPES = "serving_recipes", (".yaml", ".yml")
"""Readers of launch files of trainers and of recipes of servers, and their suffixes."""


def list_names(words: list[str]) -> int:
    """Print the names of one kind, or of all."""
    everything = kinds()
    chosen = parse("list", words)
    if chosen.kind is not None and chosen.kind not in everything:
        plural = FOLDERS[chosen.kind].plural if chosen.kind in FOLDERS else f"{chosen.kind}s"
        if plural not in everything:
            raise UnknownNameError("kind", chosen.kind, everything)
        chosen.kind = plural
    wanted = {chosen.kind: everything[chosen.kind]} if chosen.kind else everything
    if chosen.word is not None:
        wanted = {kind: _like(kind, names, chosen.word) for kind, names in wanted.items()}
    if chosen.json:
        print(json.dumps(wanted, indent=1))
        return 0
    for kind, names in wanted.items():
        print(kind)
        if kind == "spaces":
            for name in names:
                print_words(f"  {name:24} {_question(spaces()[name])}", _INDENT)
        else:
            print_words(f"  {' '.join(names) or 'none'}")
    return 0


def kinds() -> dict[str, list[str]]:
    """Return the names of everything, by kind in the plural."""
    found = {"spaces": list(spaces())}
    found |= {folder.plural: list(folder.names()) for folder in FOLDERS.values()}
    return {k: v for k, v in found.items() if v} | {
        "samplers": list(samplers.names()),
        "engines": list(engines.ENGINES),
    }


def _like(kind: str, names: list[str], word: str) -> list[str]:
    folder = next((folder for folder in FOLDERS.values() if folder.plural == kind), None)
    return [name for name in names if word in name] if folder is None else list(folder.like(word))


def _question(file: Path) -> str:
    whole = about(file)
    match = re.match(r".*?[.?](?=\s|$)", whole)
    return match[0] if match else whole


def main(words: list[str]) -> int:
    """Print the space, simulator, option group, catalog file or design with a name."""
    chosen = parse("show", words, name=[n for names in kinds().values() for n in names])
    if chosen.name.endswith(_RECIPES) and reader(_RECIPE, "is_recipe")(Path(chosen.name)):
        print(reader(_RECIPE, "space_of_recipe")(Path(chosen.name), chosen.key or ""), end="")
        return 0
    if chosen.key:
        return show(chosen.name, chosen.key, chosen.outputs, chosen.records)
    name, found = chosen.name, False
    if name.endswith(".json") and Path(name).is_file():
        print(reader("checkpoint", "described")(Path(name)))
        return 0
    if name.endswith(_LAUNCHES) and reader(_LAUNCH, "is_launch")(Path(name)):
        print(reader(_LAUNCH, "space_of_launch")(Path(name)), end="")
        return 0
    if name in spaces():
        _space(name)
        found = True
    if name in SIMULATORS.names():
        _simulator(name)
        found = True
    simulator, _, group = name.partition(".")
    if group and simulator in SIMULATORS.names():
        point = load_simulator(simulator).point
        if found := group in option_groups(point):
            _fields(point, group)
    facts = {kind: folder for kind, folder in FOLDERS.items() if kind != "simulator"}
    files = {kind: folder.find(name) for kind, folder in facts.items() if name in folder.names()}
    if not files and not found:
        for kind, folder in FOLDERS.items():  # an alias
            with contextlib.suppress(UserError):
                files[kind] = folder.find(name)
    for kind, file in files.items():
        print(f"{kind} {file.stem}  ({file})")
        text = file.read_text(encoding="utf-8").rstrip()
        if file.suffix == ".py":  # the description of a policy, not its code
            text = ast.get_docstring(ast.parse(text)) or text
        print(text)
    if not files and not found:
        known = [n for folder in FOLDERS.values() for n in folder.names()]
        raise UnknownNameError("name", name, [*spaces(), *known])
    return 0


def _space(name: str) -> None:
    file = spaces()[name]
    config = parse_space(read_space(file))
    space = space_of(config)
    print(f"space {name}  ({file})")
    print_words(about(file), "")
    print(f"{space.size:,} points of the simulator '{space.simulator}'")
    units = {f.name: f.metadata[b"unit"].decode() for f in space.schema}
    for axis in space.varied:
        values = tuple(dict.fromkeys(space.axes[axis]))
        listed = [human(v, units[axis]) for v in values[:12]]
        more = " …" if len(values) > 12 else ""
        print_words(f"  {axis:16} × {len(values):<5} {', '.join(listed)}{more}", _INDENT)
    fixed = [
        f"{n}={human(v[0], units[n])}"
        for n, v in space.axes.items()
        if n in config.axes and len(v) == 1
    ]
    if fixed:
        print_words(f"  fixed: {', '.join(fixed)}", "    ")
    for column, sql in space.derived.items():
        print(f"  {column} = {sql}")
    for line in space.counts.in_words:
        print(f"  {line}")
    wanted = objectives(config, space)
    if condition := where(config, space):
        print(f"  where {condition}")
    print(f"  objectives: {', '.join(f'{n} {d}' for n, d in wanted.items())}")


def _simulator(name: str) -> None:
    simulator = load_simulator(name)
    print(f"simulator {name}, version {simulator.version}")
    for title, kind in (("inputs", simulator.point), ("metrics", simulator.metrics)):
        print(title)
        _fields(kind)
        if groups := option_groups(kind):
            print(f"All options of a group: `show {name}.{next(iter(groups))}`")
    if isinstance(simulator, Describes):
        print("facts (for constraints and derived columns)")
        _fields(simulator.facts)


def _fields(kind: type, only: str = "") -> None:
    """Print the columns of a type, grouped options in short, or one group in full."""
    groups = option_groups(kind)
    for f in sorted(columns_of(kind), key=lambda f: f.group in groups):
        if only not in ("", f.group):
            continue
        if f.group in groups:
            print_words(f"{f.group}: {groups.pop(f.group)}", _INDENT)
        notes = [f.metadata.get("unit", ""), f.metadata.get("better") or ""]
        if f.default not in (dataclasses.MISSING, ""):
            notes.append(f"default {f.default}")
        if page := f.metadata.get("page"):
            notes.append(f"docs/explanation/{page}")
        note = ", ".join(n for n in notes if n)
        doc = f.metadata.get("doc", "")
        if f.group and not only:
            doc = doc.partition(";")[0].partition(":")[0]
        print_words(f"  {f.name:24} {doc}{f' [{note}]' if note else ''}", _INDENT)


_CHECK_HEADER = ["", "check", "error", "limit", "rows", "baseline"]


def accuracy(words: list[str]) -> int:
    """Print the checks of a simulator, a model or a GPU; by default the main figures."""
    known = stored()
    chosen = parse("accuracy", words)
    for name in chosen.simulators:
        if name not in known:
            raise UnknownNameError("group of checks", name, known)
    names = [
        FOLDERS[kind].find(name).stem
        for kind, name in (("model", chosen.model), ("gpu", chosen.gpu))
        if name
    ]
    found = {
        group: naming(checks, names)
        for group, checks in known.items()
        if group in chosen.simulators or not chosen.simulators
    }
    found = {group: checks for group, checks in found.items() if checks}
    if names and not found:
        raise UserError(f"no accuracy check exists for {' and '.join(names)}")
    if chosen.json:
        lines = [{"group": g, **dataclasses.asdict(c)} for g, cs in found.items() for c in cs]
        print(json.dumps(lines, indent=1))
    elif names or chosen.simulators:
        whole_first = reversed(found.items())  # deployments before their kernels
        cells = [_cells(group, check) for group, checks in whole_first for check in checks]
        title = "Errors on measured rows; ! misses its limit" if names else ""
        print_table(title, _CHECK_HEADER, cells)
    else:
        rows = [("", *headline.cells(known)) for headline in headlines()]
        print_table("", ["", "predicted", "error", "rows", "baseline"], [list(row) for row in rows])
        print_words(
            f"All checks of one group: accuracy {next(iter(known))}; filter: --model, --gpu."
        )
    return 0


def _cells(group: str, check: Check) -> list[str]:
    """Return a line of the table; `!` marks a check that misses its limit."""
    unit = check.unit
    return [
        "!" if check.ok is False else "",
        f"{group}: {check.name}",
        "-" if check.value is None else f"{check.value:.3g} {unit}".rstrip(),
        "" if check.limit is None else f"{check.limit:.3g}",
        f"{check.rows:,}",
        "" if check.peer is None else f"{check.peer:.3g} {unit}".rstrip(),
    ]
