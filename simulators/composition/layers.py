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

from simulators.composition.bands import doubts_of, together
from simulators.composition.iteration import Iteration, Replica, launch_s, part_iteration
from simulators.composition.pricing import Row, message_rows
from simulators.workload.cut import Parallelism, Stage, check_cut, stage_of
from simulators.workload.operators import Column
from simulators.workload.step import Step
from simulators.workload.transformer import collectives

SECONDS = ("tokens_s", "prefill_attention_s", "decode_attention_s", "collective_s")
SUMS = (*SECONDS, "tokens_j", "prefill_attention_j", "decode_attention_j")
"""What adds up over layers; the message to the next stage and launches belong to the stage."""


@dataclass(frozen=True)
class Layers:
    """The parts of a model, priced for one step."""

    replica: Replica
    step: Step
    parts: dict[Stage, Iteration]

    @property
    def waiting_w(self) -> float:
        """What the GPUs of one stage draw without work."""
        return self.parts[HEAD].waiting_w

    def stage(self, pp: int, stage: int) -> Iteration:
        """Return one iteration of a stage, as `stage_iteration` does, of a pipeline of `pp`.

        Raises:
            Infeasible: the model cannot be cut this way.
        """
        cut = replace(self.replica.cut, pp=pp)
        check_cut(self.replica.model, cut)
        replica, part = self.replica, stage_of(self.replica.model, cut, stage)
        sent = None if part.has_head else self._send(cut)
        send_s: Column = 0.0 if sent is None else sent.seconds
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
        busy_s = sum((sums[name] for name in SECONDS), start=send_s)
        doubts = [
            {family: doubt.times(n) for family, doubt in one.doubts.items()} for one, n in used
        ]
        return Iteration(
            **sums,
            send_recv_s=send_s,
            launch_s=launch_s(replica, self.step, part, busy_s),
            waiting_w=self.waiting_w,
            calibrated=all(one.calibrated for one, _ in used) and (sent is None or sent.calibrated),
            extrapolated=_any([one for one, _ in used]),
            doubts=together([*doubts, *([] if sent is None else [doubts_of([sent])])]),
        )

    def _send(self, cut: Parallelism) -> Row:
        """Return the message to the next stage, priced."""
        replica, tokens = self.replica, np.maximum(1.0, self.step.tokens)
        sent = collectives(replica.model, cut, NOTHING, tokens, replica.dtype)[-1]
        [row] = message_rows((sent,), replace(replica, cut=cut), "send_recv")
        return row.where(self.step.tokens)


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
