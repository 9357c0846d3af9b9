"""Where the time, the energy and the memory of a training step go, on one rank of a mean stage."""

from __future__ import annotations

import numpy as np

from simulators.core.columns import FITTED, LEVELS
from simulators.core.contract import Contribution
from simulators.kernels.energy import resting_w
from simulators.training.constants import Constants
from simulators.training.memory import RESERVED_BYTES, RankMemory
from simulators.training.step import Steps, Work, counts_of, pace
from simulators.training.work.operators import (
    AGAIN,
    AGAIN_ELEMENTWISE,
    FORWARD,
    INPUTS,
    SUMS,
    WEIGHTS,
)
from simulators.training.work.phases import RUNS_AGAIN, runs

PHASES = {
    FORWARD: "forward",
    INPUTS: "backward, inputs",
    WEIGHTS: "backward, weights",
    AGAIN: "recomputation",
    AGAIN_ELEMENTWISE: "recomputation, elementwise",
    SUMS: "gradient sums",
}


def explained(
    work: Work, done: Steps, memory: RankMemory, constants: Constants
) -> list[Contribution]:
    """Return the contributions to the step of the first row.

    Kernels are those of a rank of a stage of mean length; times add up to the step, energies of
    all GPUs to that of the step.
    """
    plans, job = work.plans, work.job
    gpus = int(plans.pp[0] * plans.dp[0] * job.tp * job.cp)
    rows = _kernels(work, constants, gpus)
    computing_s = sum(row.time_s for row in rows)
    messages = {
        "launches between layers": (float(done.compute_s[0]) - computing_s, "host"),
        "sums over tensor ranks": (float(done.tp_comm_s[0]), "link"),
        "keys over context ranks": (float(done.cp_comm_s[0]), "link"),
        "tokens to experts and back": (float(done.ep_comm_s[0]), "link"),
        "other stages": (float(done.bubble_s[0]), "latency"),
        "gradients and weights": (float(done.dp_comm_s[0]), "link"),
        "slowest data rank": (float(done.straggler_s[0]), "latency"),
        "optimiser": (float(done.optimizer_s[0]), "memory"),
        "batch from storage": (float(done.loading_s[0]), "host"),
    }
    waits_s = float(done.step_s[0]) - computing_s
    left_j = float(done.energy_j[0]) - sum(row.energy_j for row in rows)
    rows += [
        Contribution(
            phase="waits and messages",
            name=name,
            time_s=seconds,
            energy_j=left_j * seconds / waits_s if waits_s else 0.0,
            devices=gpus,
            bound=bound,
            level=LEVELS[FITTED],
            note=f"an idle GPU draws {resting_w(job.gpu):.0f} W or more",
        )
        for name, (seconds, bound) in messages.items()
        if abs(seconds) > 0.0
    ]
    place = "first stage, end of warm-up" if memory.is_first[0] else "last stage, at the loss"
    kept = {name: float(held[0]) for name, held in vars(memory).items() if name != "is_first"}
    kept["reserved"] = RESERVED_BYTES
    return rows + [
        Contribution(phase="memory", name=name, memory_bytes=size, note=place)
        for name, size in kept.items()
        if size
    ]


def _kernels(work: Work, constants: Constants, gpus: int) -> list[Contribution]:
    """Return what each kind of kernels of each pass takes."""
    plans = work.plans
    often = float(plans.micro_batches[0]) / float(plans.pp[0])
    counts, column = counts_of(work.job), int(work.which[0])
    sums: dict[tuple[str, str], list[float]] = {}
    layer = work.pieces.get("experts") or work.pieces["dense"]
    for name, piece in work.pieces.items():
        is_layer = name in ("dense", "experts")
        for (phase, kind), seconds in piece.seconds.items():
            times = often * counts[name]
            if is_layer or phase == SUMS:
                times *= float(runs(phase, plans)[0])
            elif phase in RUNS_AGAIN:
                times = 0.0
            row = sums.setdefault((phase, kind), [0.0, 0.0, 0.0])
            row[0] += times * pace(constants, work.job, kind) * float(seconds[column])
            row[1] += gpus * times * float(piece.joules[phase, kind][column])
            row[2] += times
    return [
        Contribution(
            phase=PHASES[phase],
            name=kind.rstrip("_"),
            count=count,
            time_s=seconds_s,
            energy_j=joules,
            devices=gpus,
            bound="memory" if kind in ("streams", "scores") else "compute",
            level=LEVELS[int(np.argmax(layer.by_level[:, column]))],
        )
        for (phase, kind), (seconds_s, joules, count) in sums.items()
        if seconds_s
    ]
