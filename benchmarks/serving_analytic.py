"""Steady states of LLM serving: points per CPU-second of the model alone, and written to Parquet.

Spans spread over `spaces/llm_gpus_grid.yaml` are evaluated in this process. Compilation
and one-time reads are not timed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from simulators.core.checks import Check, print_checks
from simulators.serving.simulator import SIMULATOR
from sweeper.engines.task import Task
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.points import Span
from sweeper.store.keys import define
from sweeper.store.store import Store

GRID = Path(__file__).parent.parent / "spaces" / "llm_gpus_grid.yaml"
WANTED_PER_CPU_S = 200_000.0
SPANS, SPAN = 8, 200_000


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--spans", type=int, default=SPANS, help=f"of {SPAN:,} points each")
    chosen = parser.parse_args()
    words: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(GRID))  # type: ignore[assignment]
    space = space_of(words)
    with tempfile.TemporaryDirectory() as folder:
        print_checks(measure(space, chosen.spans, folder, words["objectives"]), as_json=chosen.json)


def measure(space: DesignSpace, count: int, folder: str, objectives: Any) -> list[Check]:
    """Evaluate spans of the grid and return the cost."""
    stride = (len(space) - SPAN) // max(2 * count - 1, 1)
    spans = [Span(i * stride, i * stride + SPAN) for i in range(2 * count)]
    for span in spans:  # data sheets are read and facts tabulated
        SIMULATOR.evaluate(space.batch(span.cut(span.lo, span.lo + 1000)))
    space.kept(spans[0])
    task = Task(space, Store(folder, define(space)), objectives)
    model_s, model_rows, rows, ok = 0.0, 0, 0, 0
    started = time.process_time()
    for span in spans[::2]:
        part = task.answer(span)
        rows += sum(part.rows.values())
        ok += part.rows.get("ok", 0)
    used = time.process_time() - started
    for span in spans[1::2]:  # the model alone, on points that no cache holds
        batch = space.batch(span, space.kept(span))
        started = time.process_time()
        SIMULATOR.evaluate(batch)
        model_s += time.process_time() - started
        model_rows += batch.num_rows
    rate = model_rows / model_s
    written = sum(f.stat().st_size for f in Path(folder).rglob("*.parquet"))
    return [
        Check("points of the grid", float(len(space))),
        Check("points looked at", float(SPAN * count)),
        Check("rows evaluated", float(rows), note="the others break a constraint"),
        Check("rows that can be built", float(ok)),
        Check(
            "rows per CPU-second of the model",
            rate,
            "1/s",
            WANTED_PER_CPU_S,
            rate >= WANTED_PER_CPU_S,
            rows,
        ),
        Check("rows per CPU-second, written to Parquet", rows / used, "1/s"),
        Check("points per CPU-second, written to Parquet", SPAN * count / used, "1/s"),
        Check("share of the model", 100 * rows / rate / used, "%"),
        Check("bytes per row", written / rows, "B"),
    ]


if __name__ == "__main__":
    main()
