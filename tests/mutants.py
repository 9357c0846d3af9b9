"""Break the core of the physics on purpose, in one small place at a time: does a test notice?

    python -m tests.mutants                  a seeded sample of every file listed in `MUTATED`
    python -m tests.mutants NAME --most 40   more of one of them
    python -m tests.mutants --list           where mutants could be made, and how many

A mutant is one file in which one comparison, sum, product, number, `min` or condition is another.
It is alive if the tests beside it still pass. Survivors are listed with what was changed, so that
each becomes a test or an explanation (DeMillo, Lipton and Sayward, "Hints on test data selection",
1978). The checkout itself is never touched: mutants live in a copy. Mutants of kernels run as the
Python they are written in, which needs no compiler, so that one takes seconds.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis  # noqa: F401 - imported once, for all mutants
import numpy  # noqa: F401, ICN001
import polars  # noqa: F401, ICN001
import pyarrow  # noqa: F401, ICN001
import pytest

Part = ast.expr | ast.AugAssign
ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "simulators",
    "sweeper",
    "lab",
    "deploy",
    "planning",
    "formats",
    "tests",
    "spaces",
    "conf",
    "pyproject.toml",
)

PHASES = ("tests/collectives/test_phases.py", "tests/collectives/test_messages.py")
EVENTS = (
    "tests/collectives/test_event_loop.py",
    "tests/collectives/test_messages.py",
    "tests/collectives/test_trees.py",
)
ACCESS = ("tests/dataflow/test_access_by_hand.py", "tests/dataflow/test_access.py")
LOOP = (
    "tests/serving/test_loop_by_hand.py",
    "tests/serving/test_skip_ahead.py",
    "tests/serving/test_next_arrival.py",
    "tests/serving/test_loop.py",
    "tests/serving/test_rank_queues.py",
    "tests/serving/test_sessions.py",
    "-k",
    "by_hand or skip_ahead or next_arrival or single or together or two_stages or in_chunks "
    "or moving or three_stages or more_keys or put_somebody or computed_once "
    "or skipping or every_rank or littles or released or think_time",
)
MUTATED: dict[str, tuple[str, ...]] = {
    "simulators/composition/price.py": (
        "tests/composition/test_stages.py",
        "tests/composition/test_price.py",
    ),
    "simulators/serving/engine/limits.py": ("tests/serving/test_limits.py",),
    "simulators/workload/llm/parallelism.py": ("tests/workload/test_memory.py",),
    "simulators/serving/engine/kv_cache.py": (
        "tests/serving/test_kv_account.py",
        "tests/serving/test_prefix_account.py",
        "-k",
        "kv_account or hold_it_once",
    ),
    "simulators/serving/engine/loop.py": LOOP,
    "simulators/serving/engine/batches.py": LOOP,
    "simulators/collectives/phase_model.py": PHASES,
    "simulators/collectives/events/loop.py": EVENTS,
    "simulators/collectives/events/event_queue.py": ("tests/collectives/test_event_queue.py",),
    "simulators/collectives/events/links.py": (
        "tests/collectives/test_fair_shares.py",
        *EVENTS,
    ),
    "simulators/dataflow/access.py": ACCESS,
    "sweeper/query/fronts.py": ("tests/sweeper/test_fronts.py",),
    "sweeper/query/pareto.py": ("tests/sweeper/test_query.py", "-k", "not thousand and not loops"),
}
"""Files of the core, and the tests that ought to notice when they are wrong: few, and small."""

EQUAL = {
    "load[link] += 1: load[link] += 1 -> load[link] -= 1": "loads are counted again",
    'piece = results.slice(first, last - first + 1).with_row_index("__row", offset=first): '
    "1 -> 2": "a row more is read and not taken",
    "if len(found) == 1:: 1 -> 2": "the front of one front is that front",
    "return part.layers / model.attention_every if model.attention_every > 1 else part.layers: "
    "model.attention_every > 1 -> model.attention_every >= 1": "the same, over one",
    "if OPTIONAL_FEATURES and cached > 0:: cached > 0 -> cached >= 0": "nothing is cached",
    "launch_s=0.0,: 0.0 -> 1.0": "is replaced once the rest is known",
    "times = [0.0]: 0.0 -> 1.0": "the only stage is the slowest",
    "if replica.layout.pp > 1:: replica.layout.pp > 1 -> replica.layout.pp >= 1": "the same",
    "if done > request[who, at.PROMPT]:: "
    "done > request[who, at.PROMPT] -> done >= request[who, at.PROMPT]": "adds nothing",
    "count, last, size = 0, -1, chunk: -1 -> 1": "dimensions of one rank are skipped",
    "tail = np.full(lines, -1, np.int64): -1 -> 1": "is written before it is read",
    "tail = np.full(lines, -1, np.int64): 1 -> 2": "is written before it is read",
    "head = np.full(lines, -1, np.int64): 1 -> 2": "any negative number is nobody",
    "follower = np.full(chunks, -1, np.int64): 1 -> 2": "any negative number is nobody",
    "slots = min(chunks, lines * servers): min(chunks, lines * servers) -> "
    "max(chunks, lines * servers)": "more memory than needed",
    "busy, sequence, now, left = 0, 0, 0, chunks: 0 -> 1": "counts from 1; now is written first",
    "elif head[line] < 0:: 0 -> 1": "chunk 0 never waits at the start",
    "busy_until[i] == busy_until[first] and order[i] < order[first]: "
    "order[i] < order[first] -> order[i] <= order[first]": "no two have one order",
    "lanes = 1 + queue_of(half, queues, max(1, queues // 2) - 1) if half else queues: "
    "1 -> 2": "of one queue any turn is the first",
    "lines = (int(np.max(phases[:, at.DIMENSION])) + 1) * queues: 1 -> 2": "more memory than used",
    "line = phases[0, at.DIMENSION] * queues + queue_of(phases[0, at.HALF], queues, s): "
    "0 -> 1": "the first two phases use the same half",
    "busy, sequence = busy + 1, sequence + 1: 1 -> 2": "the same order",
    "busy, sequence = busy + 1, sequence + 1: sequence + 1 -> sequence - 1": "chunks are alike",
    "ahead += n * int(ahead < 0): 0 -> 1": "nobody is his own partner",
    "tries = 1: 1 -> 2": "the second finds nothing free",
    "joined_line = -1: -1 -> 1": "whoever could start there has started",
    "slot += offset: slot += offset -> slot -= offset": "other slots, as distinct",
    "slot += log2(offset): slot += log2(offset) -> slot -= log2(offset)": "other slots",
    "if len(values) <= _SMALL:: len(values) <= _SMALL -> len(values) < _SMALL": "another way",
    "if size < 0:: size < 0 -> size <= 0": "an empty front, one way or the other",
    "if (hi - lo) ** 2 <= 4 * _LEAF:: (hi - lo) ** 2 <= 4 * _LEAF -> "
    "(hi - lo) ** 2 < 4 * _LEAF": "another way to the same front",
    "if left_over == 2 and len(better) * len(worse) > _SWEEP:: len(better) * len(worse) -> "
    "len(better) / len(worse)": "another way to the same front",
    "if left_over == 2 and len(better) * len(worse) > _SWEEP:: "
    "len(better) * len(worse) > _SWEEP -> len(better) * len(worse) >= _SWEEP": "another way",
    "above, reached, high = ours > pivot, theirs >= pivot, theirs > pivot: "
    "theirs > pivot -> theirs >= pivot": "compares more, in vain",
    "order[position], order[position // 2] = order[position // 2], m: 2 -> 3": "another order",
    "slot: int = state.first_slot[state.phases.axis[p]] + 2 * int(state.phases.mirror[p] == "
    "at.NONE): state.first_slot[state.phases.axis[p]] + 2 * int(state.phases.mirror[p] == at.NONE) "
    "-> state.first_slot[state.phases.axis[p]] - 2 * int(state.phases.mirror[p] == "
    "at.NONE)": "other slots, as distinct",
    "clock[at.STALE] = int(kept < count): kept < count -> kept <= count": "shares anew, alike",
    "turn = 0 if state.settings.mode == at.SHARED else to // stride % n % state.uplinks[d]: "
    "0 -> 1": "another rank of the leaf represents its uplinks",
    "rounds[at.REPEATS] = possible_repeats(state, slot, holds) if holds > 1 else 0: "
    "holds > 1 -> holds >= 1": "what holds for one iteration is never repeated",
    "rounds[at.REPEATS] = possible_repeats(state, slot, holds) if holds > 1 else 0: "
    "1 -> 2": "the scheduler is asked once more, and decides the same",
    "window = _window_pass.compiled if len(order) > _SMALL else None: len(order) > _SMALL -> "
    "len(order) >= _SMALL": "another way",
    "rows, counts = kept[size : size + _WINDOW], ties[size : size + _WINDOW]: size + _WINDOW -> "
    "size - _WINDOW": "no space for the window, so another algorithm",
    "if found < 0:  # few rows in all, or a front that outgrows the window: found < 0 -> "
    "found <= 0": "an empty front, one way or the other",
    "if found < 0:  # few rows in all, or a front that outgrows the window: "
    "0 -> 1": "an empty front, one way or the other",
    "if (hi - lo) ** 2 <= 4 * _LEAF:: 2 -> 3": "another way to the same front",
    "if (hi - lo) ** 2 <= 4 * _LEAF:: 4 -> 5": "another way to the same front",
    "if left_over < 2 or len(better) * len(worse) <= _LEAF:: len(better) * len(worse) -> "
    "len(better) / len(worse)": "another way to the same front",
    "if child < levels:: child < levels -> child <= levels": "multipliers are not filled",
    "repeat(problem.sums, axis, times, last, level * dims + k <= place): level * dims + k <= place "
    "-> level * dims + k < place": "the loop that stands there slides",
    "slides if holds else -1, place,: 1 -> 2": "any negative number is none",
    "words *= along(problem, loops, problem.terms[row], level, level, how, how, -1, ALL): "
    "1 -> 2": "any negative number is none",
    "drafts = state.limits[at.DRAFTED] > 0: state.limits[at.DRAFTED] > 0 -> "
    "state.limits[at.DRAFTED] >= 0": "of no drafts none is accepted",
    "if m == 1 or n == 1:: m == 1 or n == 1 -> m == 1 and n == 1": "one has no predecessor",
    "repeat(sums, 1, n, n_last, how != FIRST): 1 -> 2": "whatever is not the first is the second",
    "now = 0: 0 -> 1": "nothing flies before an event has happened",
    "first, second, replica = inf, inf, -1: 1 -> 2": "any negative number is nobody",
    "elif end < second:: end < second -> end <= second": "the same instant",
    "first_end, longest, stall = now, 0.0, 0.0: 0.0 -> 1.0": "no waits are read without a round",
    "if rounds > 0:: rounds > 0 -> rounds >= 0": "without a round nothing has grown or waited",
    "if done > prompt:: done > prompt -> done >= prompt": "a prompt that ends has its token by now",
    "if stages.size > 1:: stages.size > 1 -> stages.size >= 1": "one place changes with itself",
    "if below >= length:: below >= length -> below > length": "the event itself stands there",
    "if right < length and (: right < length -> right <= length": "the event itself stands there",
    "and queue[right, SEQUENCE] < queue[below, SEQUENCE]: queue[right, SEQUENCE] < queue[below, "
    "SEQUENCE] -> queue[right, SEQUENCE] <= queue[below, SEQUENCE]": "no two have one number",
    "time == queue[below, TIME] and sequence < queue[below, SEQUENCE]: sequence < queue[below, "
    "SEQUENCE] -> sequence <= queue[below, SEQUENCE]": "no two have one number",
}
"""Mutants, by the line they are in, that compute the same as what they are of, and why."""

SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
SECONDS = 40
"""Of a processor: a mutant that hangs its tests is noticed."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    was: str
    now: str
    text: str  # the line
    source: str  # of the whole file, changed

    @property
    def change(self) -> str:
        """What is in the place of what."""
        return f"{self.was} -> {self.now}"


def mutants_of(file: str) -> list[Mutant]:
    """Return every mutant of a file; types, defaults and docstrings are left alone."""
    source = (ROOT / file).read_text(encoding="utf-8")
    lines = source.splitlines()
    found = dict[str, Mutant]()  # by changed source: what stands in nested functions is seen twice
    for node, other in _changes(ast.parse(source)):
        was = ast.get_source_segment(source, node)
        if was is None:
            continue
        start, end = _span(source, node)
        now = ast.unparse(other)
        put = f"({now})" if isinstance(other, ast.expr) else now
        changed = f"{source[:start]}{put}{source[end:]}"
        text = lines[node.lineno - 1].strip()
        found[changed] = Mutant(file, node.lineno, " ".join(was.split()), now, text, changed)
    return list(found.values())


def _span(source: str, node: Part) -> tuple[int, int]:
    """Return where an expression stands, in characters."""
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    until = (
        b"".join(lines[: node.end_lineno - 1]) + lines[node.end_lineno - 1][: node.end_col_offset]
    )
    return len(before.decode()), len(until.decode())


def _changes(tree: ast.Module) -> Iterator[tuple[Part, Part]]:
    """Yield expressions inside functions, and what each could be instead."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    if isinstance(node, Part):
                        yield from ((node, other) for other in _others(node))


def _others(node: Part) -> Iterator[Part]:
    match node:
        case ast.AugAssign(target, operator, value) if type(operator) in SWAPS:
            yield ast.AugAssign(target, SWAPS[type(operator)](), value)  # type: ignore[arg-type]
        case ast.Compare(left, [operator], [right]) if type(operator) in SWAPS:
            yield ast.Compare(left, [SWAPS[type(operator)]()], [right])  # type: ignore[list-item]
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(operator)](), right)  # type: ignore[arg-type]
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPS[type(operator)](), values)  # type: ignore[arg-type]
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Call(ast.Name(name), arguments, []) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name]), arguments, [])
        case ast.Call(ast.Attribute(value, name), arguments, []) if name in NAMES:
            yield ast.Call(ast.Attribute(value, NAMES[name]), arguments, [])
        case ast.Constant(bool()) | ast.Constant(str()):
            return
        case ast.Constant(int() | float() as number):
            yield ast.Constant(number + 1)


def survives(mutant: Mutant, copy: Path, tests: tuple[str, ...]) -> bool:
    """Say whether all tests still pass with a mutant in the place of its file."""
    file = copy / mutant.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    try:
        return passes(copy, mutant.file, tests)
    finally:
        file.write_text(whole, encoding="utf-8")


def passes(copy: Path, file: str, tests: tuple[str, ...]) -> bool:
    """Say whether tests of a file of a copy pass, in a process that has imported what they need."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
        del sys.modules[name]
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    if "@kernel(" in (copy / file).read_text(encoding="utf-8"):
        jit = importlib.import_module("simulators.core.jit")
        jit.Kernel.compiled = property(lambda kernel: kernel.py_func)
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


def main() -> int:
    """Print the survivors; exit code 1 if more than five in a hundred are alive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of the files' paths")
    parser.add_argument("--most", type=int, default=12, help="mutants of a file (default 12)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    files = [f for f in MUTATED if not asked.names or any(name in f for name in asked.names)]
    if asked.list:
        print("\n".join(f"{len(mutants_of(file)):5} {file}" for file in files))
        return 0
    made = alive = equal = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in filter(lambda name: (ROOT / name).exists(), COPIED):
            where = copy / name
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, where, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, where)
        for file in files:
            if not passes(copy, file, MUTATED[file]):
                raise SystemExit(f"{', '.join(MUTATED[file])}: fail without any mutant")
            found = mutants_of(file)
            chosen = random.Random(asked.seed).sample(found, min(asked.most, len(found)))  # noqa: S311
            for mutant in sorted(chosen, key=lambda m: m.line):
                made += 1
                if not survives(mutant, copy, MUTATED[file]):
                    continue
                if f"{mutant.text}: {mutant.change}" in EQUAL:
                    equal += 1
                else:
                    alive += 1
                    print(f"alive: {file}:{mutant.line}: {mutant.change}", flush=True)
    print(f"{alive} of {made} mutants alive, and {equal} equal to what they are of")
    return 1 if alive > 0.05 * made else 0


if __name__ == "__main__":
    sys.exit(main())
