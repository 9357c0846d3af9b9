"""Mappings evaluated per CPU-second, and a whole network mapped: `python -m benchmarks.dataflow`.

Timeloop evaluates 24 to 527 valid mappings per CPU-second, and tries 600 to 70,000.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from benchmarks.timing import median_cpu_s
from simulators.catalog.accelerator import load_accelerator
from simulators.core.checks import Check, print_checks
from simulators.core.jit import Ints, array, i8, kernel, matrix
from simulators.dataflow.access import COUNTS, FEASIBLE, PROBLEM, Problem
from simulators.dataflow.evaluation import RESULTS, evaluate, problem_of
from simulators.dataflow.mapping import encode, layers_of, network
from simulators.dataflow.search.mapper import find
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, simulate

MAPPINGS = 1024  # in one call
CALLS = 200
DISTINCT = 64
RATE_BAR = 1e6
NETWORK_BAR_S = 20.0
WALK = 400_000


def main() -> None:
    """Print rates of evaluation and of search, and the time of a network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    SIMULATOR.warm_up()
    cases = [("eyeriss_like", "conv1"), ("two_level", "conv1"), ("tpu_like", "conv3_2_3x3")]
    checks = [_evaluations(*case) for case in cases]
    checks += [_search(*case) for case in cases]
    checks.append(_network("eyeriss_like", "resnet50"))
    print_checks(checks, as_json=chosen.json)


def _evaluations(accelerator_name: str, layer_name: str) -> Check:
    """Return the rate of evaluating feasible mappings; each run has new mappings."""
    accelerator = load_accelerator(accelerator_name)
    layer = layers_of("resnet50", layer_name)[0][0]
    problem = problem_of(layer, accelerator)

    def prepare(run: int) -> Callable[[], int]:
        seeds = range(run * DISTINCT, (run + 1) * DISTINCT)
        found = [
            encode(find(layer, accelerator, evaluations=300, seed=s).mapping, layer, accelerator)
            for s in seeds
        ]
        loops, keep = (
            np.ascontiguousarray(np.resize(np.array(part), (MAPPINGS, *part[0].shape)))
            for part in zip(*found, strict=True)
        )
        counts = np.zeros((keep.shape[1], 3, 3), np.int64)
        return lambda: sum(evaluate_all(problem, loops, keep, counts) for _ in range(CALLS))

    feasible, spent = median_cpu_s(prepare)
    rate = feasible / spent
    name = f"evaluated, {layer_name} on {accelerator_name}"
    return Check(
        name, rate, "1/s", RATE_BAR, rate >= RATE_BAR, MAPPINGS * CALLS, "all feasible; at least"
    )


@kernel(i8(PROBLEM, array(i8, 4), matrix(i8), COUNTS))
def evaluate_all(problem: Problem, loops: Ints, keep: Ints, counts: Ints) -> int:
    """Evaluate many mappings, and return the number of feasible ones."""
    feasible, out = 0, np.zeros(RESULTS)
    for row in range(keep.shape[0]):
        feasible += evaluate(problem, loops[row], keep[row], counts, out) == FEASIBLE
    return feasible


def _search(accelerator_name: str, layer_name: str) -> Check:
    """Return the rate of the mapper, moves and random numbers included."""
    accelerator = load_accelerator(accelerator_name)
    layer = layers_of("resnet50", layer_name)[0][0]
    started = time.process_time()
    found = find(layer, accelerator, evaluations=WALK)
    rate = found.evaluations / (time.process_time() - started)
    share = found.feasible / found.evaluations
    note = f"{100 * share:.0f} % of them feasible"
    return Check(f"searched, {layer_name} on {accelerator_name}", rate, "1/s", rows=WALK, note=note)


def _network(accelerator_name: str, network_name: str) -> Check:
    started = time.perf_counter()
    point = DataflowPoint(accelerator_name, network=network_name, evaluations=200_000)
    found = simulate(point)
    spent_s = time.perf_counter() - started
    note = f"{found.energy_j * 1e3:.2f} mJ, {found.latency_s * 1e3:.1f} ms, one core; at most"
    layers = len(network(network_name))
    return Check(
        f"mapped, {network_name} on {accelerator_name}",
        spent_s,
        "s",
        NETWORK_BAR_S,
        spent_s <= NETWORK_BAR_S,
        layers,
        note,
    )


if __name__ == "__main__":
    main()
