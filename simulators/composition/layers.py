"""However a model is cut into stages, its layers stay what they are: each kind is priced once.

A stage is some layers of either kind, perhaps the embedding or the LM head, and the message to the
next stage. One layer of each kind and each end, priced for a step, make the stages of every
pipeline of the same tensor parallel degree, up to the rounding of sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.composition.iteration import Iteration, Replica, part_iteration
from simulators.workload.cut import Parallelism, Stage, check_cut, stage_of
from simulators.workload.operators import Column
from simulators.workload.step import Step

SUMS = (
    "tokens_s", "prefill_attention_s", "decode_attention_s", "collective_s", "tokens_j",
    "prefill_attention_j", "decode_attention_j",
)  # fmt: skip
"""What adds up over layers; the message to the next stage and launches belong to the stage."""


@dataclass(frozen=True)
class Layers:
    """The parts of a model, priced for one step."""

    replica: Replica
    step: Step
    parts: dict[Stage, Iteration]

    def stage(self, pp: int, stage: int) -> Iteration:
        """Return one iteration of a stage, as `stage_iteration` does, of a pipeline of `pp`.

        Raises:
            Infeasible: the model cannot be cut this way.
        """
        cut = Parallelism(tp=self.replica.cut.tp, pp=pp)
        check_cut(self.replica.model, cut)
        replica = replace(self.replica, cut=cut)
        part = stage_of(replica.model, cut, stage)
        message = part_iteration(replica, self.step, replace(NOTHING, has_head=part.has_head))
        counts = {
            DENSE: part.dense_layers,
            EXPERTS: part.expert_layers,
            EMBEDDING: int(part.has_embedding),
            HEAD: int(part.has_head),
        }
        used = [(self.parts[one], count) for one, count in counts.items() if count]
        sums: dict[str, Any] = {
            name: _sum([(getattr(one, name), n) for one, n in used]) for name in SUMS
        }
        whole = replace(
            message,
            **sums,
            launch_s=0.0,
            calibrated=all(one.calibrated for one, _ in used) and message.calibrated,
            extrapolated=_any([one for one, _ in used]),
        )
        launch_s = replica.runtime.launch_s(
            part.layers, self.step.prefills + self.step.decodes, whole.busy_s, replica.cluster
        )
        return replace(whole, launch_s=launch_s)


NOTHING = Stage(dense_layers=0, expert_layers=0, has_embedding=False, has_head=False)
DENSE, EXPERTS = replace(NOTHING, dense_layers=1), replace(NOTHING, expert_layers=1)
EMBEDDING, HEAD = replace(NOTHING, has_embedding=True), replace(NOTHING, has_head=True)


def layers_of(replica: Replica, step: Step) -> Layers:
    """Return one layer of each kind and each end, priced; `replica.cut.pp` does not matter."""
    model = replica.model
    kinds = [EMBEDDING, HEAD]
    kinds += [DENSE] if model.expert_layers < model.layers else []
    kinds += [EXPERTS] if model.expert_layers else []
    return Layers(replica, step, {one: part_iteration(replica, step, one) for one in kinds})


def _sum(terms: list[tuple[Column, int]]) -> Column:
    """Return a sum of multiples, one after another."""
    total: Column = 0.0
    for column, count in terms:
        total = total + count * column
    return total


def _any(parts: list[Iteration]) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = np.zeros((), bool)
    for part in parts:
        flags = flags | part.extrapolated
    return flags
