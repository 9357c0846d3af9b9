"""Training steps priced per CPU-second, and a search: `python -m benchmarks.training [--json]`.

Calculon prices 570 configurations per second. Configurations are all parallelization plans of
GPT-3 175B on 1,024 H100s; every timed run has a new sequence length.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from benchmarks.timing import median_cpu_s
from simulators.core.checks import Check, print_checks
from simulators.core.columns import batch_of
from simulators.core.jit import Floats
from simulators.training.point import TrainingPoint
from simulators.training.simulator import SIMULATOR

BAR = 60_000.0
RUNS = 5
SEARCH_LIMIT_S = 5.0
BASE = TrainingPoint(model="gpt3_175b", gpu="h100_sxm", sequence=2048, batch=1536)
SCHEDULES = (("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2), ("interleaved", 4))


def main() -> None:
    """Print configurations per CPU-second, and the result of the search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    SIMULATOR.warm_up()
    started_s = time.perf_counter()
    points = list(plans())
    answer = SIMULATOR.evaluate(batch_of(TrainingPoint, *map(vars, points)))
    front = pareto(answer)
    search_s = time.perf_counter() - started_s
    _, spent = median_cpu_s(_priced, RUNS)
    rate = len(points) / spent
    fits = answer.num_rows - answer.column("step_s").null_count
    print_checks(
        [
            Check("configurations per CPU-second", rate, "1/s", BAR, rate >= BAR, len(points)),
            Check(
                "search of GPT-3 175B on 1,024 H100s",
                search_s,
                "s",
                SEARCH_LIMIT_S,
                search_s <= SEARCH_LIMIT_S,
                len(points),
                f"{fits:,} fit, {front.size} on the front of step time and memory",
            ),
        ],
        as_json=chosen.json,
    )


def _priced(run: int) -> Callable[[], pa.RecordBatch]:
    """Return a function that prices all plans for a new sequence length."""
    batch = batch_of(TrainingPoint, *map(vars, plans(sequence=2048 + 64 * run)))
    return functools.partial(SIMULATOR.evaluate, batch)


def plans(gpus: int = 1024, sequence: int = BASE.sequence) -> Iterator[TrainingPoint]:
    """Yield all parallelization plans of the model on the GPUs, with every way of running them."""
    degrees = [2**n for n in range(11)]
    for tp, pp, cp in itertools.product((1, 2, 4, 8), degrees[:6], (1, 2, 4, 8)):
        if gpus % (tp * pp * cp):
            continue
        dp = gpus // (tp * pp * cp)
        for (schedule, chunks), micro_batch, recompute, zero in itertools.product(
            SCHEDULES, (1, 2, 4, 8), ("none", "selective", "full"), (0, 1, 2, 3)
        ):
            yield replace(
                BASE,
                sequence=sequence,
                tp=tp,
                pp=pp,
                cp=cp,
                dp=dp,
                schedule=schedule,
                chunks=chunks,
                micro_batch=micro_batch,
                recompute=recompute,
                zero=zero,
                batch=1536 if dp <= 512 else 2048,
            )


def pareto(answer: pa.RecordBatch) -> Floats:
    """Return the rows on the front of step time and memory."""
    step_s = answer.column("step_s").to_numpy(zero_copy_only=False)
    held = answer.column("memory_bytes").to_numpy(zero_copy_only=False)
    order = [row for row in np.lexsort((held, step_s)) if not np.isnan(step_s[row])]
    least, front = np.inf, []
    for row in order:
        if held[row] < least:
            least = held[row]
            front.append(row)
    return np.array(front, np.float64)


if __name__ == "__main__":
    main()
