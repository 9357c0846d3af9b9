"""A published configuration search, answered exactly: all of its designs in seconds.

AISimulate publishes a search for Llama 3.1 70B on at most 32 B200 (8,192 prompt and 512 output
tokens, 32 clients, 320 requests, vLLM 0.24, throughput per GPU): 64 trials of a Gaussian-process
bandit and 64 random ones (ai-dynamo/aisimulate, Apache-2.0,
docs/cli/benchmarks/recommend-runtime-70b-2026-09-12.json, revision 6059161a; Apple M3 Pro). Its
space has one worker shape for each power of two of tensor parallelism (one GPU is too small), all
numbers of replicas within 32 GPUs, and three values of both scheduler limits: 270 designs.

Here all designs are simulated by events. The regret of a design is the throughput per GPU that it
lacks to the best one, under this model. The regret of random search is the exact mean over all
sets of designs of the published size.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from simulators.core.checks import Check, print_checks
from simulators.core.jit import Floats
from sweeper.report.certificate import rows_at
from sweeper.space.design_space import DesignSpace

LIMIT_S = 10.0


@dataclass(frozen=True)
class PublishedSearch:
    """The best design that a published search found."""

    name: str
    trials: int
    evaluated: int  # different designs
    seconds: float
    score: float  # output tokens per second and GPU, under its own model
    design: Mapping[str, int]


PUBLISHED = (
    # The token budget of the Bayesian search's best design is the one of three that is not among
    # its other designs with this worker.
    PublishedSearch(
        "Bayesian", 64, 28, 143.5, 302.7, {"tp": 2, "replicas": 1, "chunk_size": 16384}
    ),
    PublishedSearch("random", 64, 52, 7.7, 251.5, {"tp": 4, "replicas": 1, "chunk_size": 32768}),
)


def searched_space() -> DesignSpace:
    """Return the published space."""
    axes: dict[str, Any] = {
        "model": "llama3_1_70b",
        "gpu": "b200_sxm",
        "dtype": "bf16",
        "scheduler": "vllm_v1",
        "prompt_tokens": 8192,
        "output_tokens": 512,
        "requests": 320,
        "arrivals.process": "closed",
        "arrivals.clients": 32,
        "tp": [2, 4, 8, 16],
        "replicas": "1..16",
        "chunk_size": [8192, 16384, 32768],
        "max_batch": [256, 512, 1024],
    }
    return DesignSpace.of("serving", constraints=["gpus <= 32"], **axes)


def mean_best(values: Floats, count: int) -> float:
    """Return the mean of the largest of `count` different values, over all choices of them.

    >>> mean_best(np.array([1.0, 2.0, 3.0]), 2)
    2.6666666666666665
    """
    ascending = np.sort(values)
    total = math.comb(values.size, count)
    ways = [math.comb(place, count - 1) for place in range(values.size)]
    return math.fsum(v * (n / total) for v, n in zip(ascending.tolist(), ways, strict=True))


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    print_checks(list(regrets()), as_json=parser.parse_args().json)


def regrets() -> Iterator[Check]:
    """Yield the time for the exact optimum, the optimum, and the regret of each search."""
    space = searched_space()
    index = np.arange(space.size)
    kept = space.kept(index)
    index = index if kept is None else index[kept]
    rows_at(space, index[:1])  # compiles the event loop
    began_s = time.process_time()
    rows = rows_at(space, index).with_columns(score=pl.col("tokens_per_s") / pl.col("gpus"))
    took_s = time.process_time() - began_s
    yield Check(
        "published search, exact optimum", took_s, "CPU-s", LIMIT_S, took_s <= LIMIT_S, len(rows)
    )
    scores = rows["score"].to_numpy()
    best = rows.row(int(np.argmax(scores)), named=True)
    note = ", ".join(f"{name} {best[name]:,}" for name in ("tp", "replicas", "chunk_size"))
    yield Check(
        "best design, output tokens/s per GPU", float(scores.max()), rows=len(rows), note=note
    )
    for one in PUBLISHED:
        mine = rows.filter(*(pl.col(name) == value for name, value in one.design.items()))
        regret = 100.0 * (1.0 - float(mine["score"].to_numpy().max()) / float(scores.max()))
        note = (
            f"best of {one.trials} trials ({one.evaluated} designs, {one.seconds:g} s): "
            f"tp {one.design['tp']}, {one.score:g} under its own model"
        )
        yield Check(f"regret of the published {one.name} search", regret, "%", note=note)
    for count in (28, 52):
        expected = 100.0 * (1.0 - mean_best(scores, count) / float(scores.max()))
        yield Check(f"mean regret of {count} random designs", expected, "%", rows=len(rows))


if __name__ == "__main__":
    main()
