"""The `ask` command: find the cheapest design that meets an SLO.

The flags, which the simulator declares, become a space file. The command sweeps the space and
prints the best design; all other commands work on the stored sweep. If designs have replicas, the
search looks for the smallest number of replicas.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from sweeper.commands import verdicts
from sweeper.commands.ask import Answer, parsed
from sweeper.commands.run import Asked, asked_by, sweep
from sweeper.commands.verdicts import SloProbability
from sweeper.engines import load_engine
from sweeper.engines.chunks import hinted
from sweeper.questions import QUESTIONS, Asks, Question, known_beside
from sweeper.report.tables import write_text
from sweeper.samplers._axis_searches import MinReplicasSearch

_LITTLE_S = 2.0
"""CPU-seconds of work below which starting a worker process takes longer than the sweep."""


def main(words: list[str]) -> int:
    """Sweep and print the answer; the exit code is 1 if no design meets the SLO."""
    words = _named(words)
    named = bool(words) and not words[0].startswith("-")
    simulator = load_simulator(words[0] if named else QUESTIONS.names()[0])
    asks = known_beside(simulator, QUESTIONS)
    if not isinstance(asks, Asks):
        able = ", ".join(QUESTIONS.names())
        raise UserError(
            f"`ask` does not support the simulator '{simulator.name}'; it supports {able}"
        )
    chosen, question = parsed(asks, words[1:] if named else words)
    file = Path(chosen.outputs) / "spaces" / f"{question.name}.yaml"
    said = (f"{key}: {json.dumps(value)}\n" for key, value in question.space.items())
    write_text(file, f"# {question.asks}\n{''.join(said)}")  # JSON is YAML
    engine = [f"engine={chosen.engine_}", *(["engine.worth_s=120"] * (chosen.engine_ == "auto"))]
    asked = asked_by([f"+space={file}", f"outputs={chosen.outputs}", *engine])
    if sum(asked.sweep.space.removed().values()) == asked.sweep.space.size:
        raise UserError(question.too_large)
    sure = SloProbability(question, chosen.sure, chosen.band)
    last = sweep(_fewest(asked, question, sure, is_free=chosen.engine_ == "auto")).answers
    answer = Answer(question, last, verdicts(question, last, sure), chosen)
    if chosen.json:
        print(json.dumps(answer.to_dict(), indent=1, default=str))
    else:
        answer.print()
    return 0 if answer.is_found else 1


def _named(words: list[str]) -> list[str]:
    """Expand `--train MODEL` to `training --model MODEL`."""
    verbs = {f"--{name.removesuffix('ing')}": name for name in QUESTIONS.names()}
    if words and words[0] in verbs:
        return [verbs[words[0]], "--model", *words[1:]]
    return words


def _fewest(asked: Asked, question: Question, sure: SloProbability, *, is_free: bool) -> Asked:
    """Return a sweep that searches for the fewest replicas, if the question has a replica axis.

    The prefilter already loads the simulator in this process, so small sweeps also run here unless
    the user named an engine.
    """
    if not question.copies:
        return asked
    given = (*question.given, question.device)
    sampler = MinReplicasSearch(question.copies, question.devices, given, sure)
    space, engine = asked.sweep.space, asked.sweep.engine
    guess = hinted(space) if is_free else None
    if guess is not None and guess.point_s * sampler.size(space) < _LITTLE_S:
        engine = load_engine("inline")
    return asked._replace(sweep=dataclasses.replace(asked.sweep, sampler=sampler, engine=engine))
