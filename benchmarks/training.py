"""Training steps priced per CPU-second, and a search: `python -m benchmarks.training [--json]`.

The peer, Calculon, prices 570 configurations a second. Configurations are all cuts of GPT-3 175B
over 1,024 H100s, as many times over as make a batch.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.core.report import print_checks
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.simulator import SIMULATOR

BAR = 50_000.0
RUNS = 3
SEARCH_LIMIT_S = 60.0
BASE = TrainingPoint(model="gpt3_175b", gpu="h100_sxm", sequence=2048, batch=1536)
SCHEDULES = (("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2), ("interleaved", 4))


def main() -> None:
    """Print configurations per CPU-second, and what the search for the best cut finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    SIMULATOR.warm_up()
    started_s = time.perf_counter()
    points = list(cuts())
    answer = SIMULATOR.evaluate(batch_of(points))
    front = pareto(answer)
    search_s = time.perf_counter() - started_s
    batch = batch_of(points)
    seconds = []
    for _ in range(RUNS):
        started_s = time.process_time()
        SIMULATOR.evaluate(batch)
        seconds.append(time.process_time() - started_s)
    rate = len(points) / statistics.median(seconds)
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


def cuts(gpus: int = 1024) -> Iterator[TrainingPoint]:
    """Yield all cuts of the model over the GPUs, with every way of running them."""
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
    """Return the rows that no other beats in both step time and memory."""
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
