"""The command `ask`: find the cheapest design that meets an SLO.

The flags, which the simulator declares, become a space file. The command sweeps the space and
prints the best design of each device with P(meets SLO) and the deployment; all other commands work
on the stored sweep. If designs have replicas, the search looks for the smallest number of replicas.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

from simulators.core.contract import Simulator, load_simulator
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import load_from
from sweeper.commands.ask import several
from sweeper.commands.ask.answer import Answer
from sweeper.commands.ask.day import day_plan_of
from sweeper.commands.ask.probability import SloProbability
from sweeper.commands.ask.proof import certificate_of, in_words
from sweeper.commands.ask.verdicts import kept_with, verdicts
from sweeper.commands.flags import question_parser, simulator_asked
from sweeper.commands.run import RequestedSweep, grid_sweep, sweep
from sweeper.engines import load_engine
from sweeper.engines.chunks import hinted
from sweeper.questions import ANSWERS, FLAGS, QUESTIONS, BuildsQuestions, Question, plugin_of
from sweeper.report.tables import print_words, write_text
from sweeper.samplers._min_replicas import MinReplicasSearch

_SHORT_SWEEP_S = 2.0
"""CPU-seconds of work below which starting a worker process takes longer than the sweep."""
_LONG_SWEEP_S = 600.0
"""CPU-seconds of work from which the engine `auto` chooses, which starts Ray."""
_NEARER = 0.98
"""Factor of the miss from which twice the devices do not help."""


def main(words: list[str]) -> int:
    """Sweep and print the answer; the exit code is 1 if no design meets the SLO."""
    if words and words[0] in ANSWERS.names():
        return print_direct(*words)
    if any(word.partition("=")[0] == several.FLAG for word in words) and "--help" not in words:
        return several.main(words, answer_to)
    answer = answer_to(words)
    proof = certificate_of(answer, words) if answer.chosen.prove else None
    if proof is not None:
        write_text(answer.chosen.prove, proof.to_json())
    plan = day_plan_of(answer)
    if answer.chosen.json:
        found = answer.to_dict() | ({"day": plan.to_dict()} if plan else {})
        print(json.dumps(found, indent=1, default=str))
    else:
        answer.print()
        if plan is not None:
            plan.print(answer.question.device.upper())
        for line in in_words(proof) if proof else ():
            print_words(line)
    return 0 if answer.is_found else 1


def print_direct(name: str, *words: str) -> int:
    """Print the answer to a question that needs no sweep; the exit code is 1 without a design."""
    flags = load_from(FLAGS, name, "FLAGS")
    parser = question_parser(flags)
    chosen = parser.parse_args(list(words))
    own = {f.name for f in dataclasses.fields(flags)} | {"json"}
    if others := parser.given_besides(chosen, own):
        raise UserError(f"{', '.join(others)}: `ask {name}` sweeps no designs; leave it out")
    asked = flags(**{f.name: getattr(chosen, f.name) for f in dataclasses.fields(flags)})
    try:
        lines, values = load_from(ANSWERS, name, "answer")(asked)
    except Infeasible as reason:
        print_words(str(reason))
        return 1
    if chosen.json:
        print(json.dumps(values, indent=1))
    else:
        print_words("\n".join(lines))
    return 0


def ask(simulator: str = "", **flags: Any) -> Answer:
    """Return the answer to a question, for a notebook, which shows it as the command prints it.

    Args:
        simulator: empty, or `training`.
        flags: the flags of the command, as in `model="llama3_1_8b", gpu=["h100", "l40s"], qps=2`.

    Raises:
        UserError: a flag is missing, unknown or invalid.
    """
    words = [simulator] if simulator else list[str]()
    for name, value in flags.items():
        values = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name.replace('_', '-')}", ",".join(map(str, values))]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return answer_to(words)


def answer_to(words: list[str]) -> Answer:
    """Sweep and return the answer to a question by flags."""
    name, words = simulator_asked(words, QUESTIONS.names())
    chosen, question = parsed(question_builder(load_simulator(name)), words)
    if chosen.models or chosen.shares:
        raise UserError("--models and --shares answer on the command line alone")
    return grown(question, chosen)


def grown(question: Question, chosen: argparse.Namespace) -> Answer:
    """Return the answer with the devices of the question, or twice as many until there is one.

    A question stops growing when twice the devices bring the nearest design no nearer.
    """
    before = math.inf
    while True:
        is_last = question.larger is None or not question.is_grown
        answer = answered(question, chosen, is_last=is_last)
        if answer is not None:
            miss = answer.miss
            if answer.is_found or is_last or miss <= 1.0 or miss > _NEARER * before:
                return answer
            before = miss
        assert question.larger is not None
        question = dataclasses.replace(question.larger(), is_grown=True)


def answered(
    question: Question, chosen: argparse.Namespace, *, is_last: bool = True
) -> Answer | None:
    """Return the answer to a question; None without any point, or an error if it is the last."""
    file = Path(chosen.outputs) / "spaces" / f"{question.name}.yaml"
    said = (f"{key}: {json.dumps(value)}\n" for key, value in question.space.items())
    write_text(file, f"# {question.asks}\n{''.join(said)}")  # JSON is YAML
    space = json.loads(json.dumps(question.space))  # as the file has it
    asked = grid_sweep(question.name, space, outputs=chosen.outputs, engine=chosen.engine_)
    if sum(asked.sweep.space.removed().values()) == asked.sweep.space.size:
        if is_last:
            raise UserError(question.too_large)
        return None
    slo = SloProbability(question, chosen.confidence, chosen.band, kept_with(asked.sweep.store))
    searched = _fewest(asked, question, slo, is_free=chosen.engine_ == "auto")
    last, sampler = sweep(searched).answers, searched.sweep.sampler
    found = verdicts(question, last, slo)
    screened = tuple(sampler.screened) if isinstance(sampler, MinReplicasSearch) else ()
    return Answer(question, last, found, chosen, lambda other: grown(other, chosen), screened)


def _fewest(
    asked: RequestedSweep, question: Question, slo: SloProbability, *, is_free: bool
) -> RequestedSweep:
    """Return a sweep that searches for the fewest replicas, if the question has a replica axis.

    The prefilter already loads the simulator in this process, so small sweeps also run here, and
    larger ones on all cores, unless the user named an engine.
    """
    if not question.copies:
        return asked
    given = (*question.given, question.device)
    sampler = MinReplicasSearch(
        question.copies,
        question.devices,
        given,
        slo,
        question.options,
        question.contrast[0] if question.contrast else "",
    )
    space, engine = asked.sweep.space, asked.sweep.engine
    guess = hinted(space) if is_free else None
    if guess is not None:
        work_s = guess.point_s / space.share * sampler.size(space)
        if work_s < _LONG_SWEEP_S:
            engine = load_engine("process", workers=0)
        if work_s < _SHORT_SWEEP_S:
            engine = load_engine("inline")
    searched = dataclasses.replace(asked.sweep, sampler=sampler, engine=engine)
    return asked._replace(sweep=searched, faster=question.faster)


def question_of_words(words: list[str]) -> Question:
    """Return the question that flags ask."""
    name, words = simulator_asked(words, QUESTIONS.names())
    return parsed(question_builder(load_simulator(name)), words)[1]


def question_builder(simulator: Simulator) -> BuildsQuestions:
    """Return what `ask` can ask of a simulator."""
    asks = plugin_of(simulator, QUESTIONS)
    if not isinstance(asks, BuildsQuestions):
        able = ", ".join(QUESTIONS.names())
        raise UserError(
            f"`ask` does not support the simulator '{simulator.name}'; it supports {able}"
        )
    return asks


def parsed(asks: BuildsQuestions, words: list[str]) -> tuple[argparse.Namespace, Question]:
    """Return the parsed flags and the question built from them."""
    chosen = question_parser(asks.flags).parse_args(words)
    asked = asks.flags(**{f.name: getattr(chosen, f.name) for f in dataclasses.fields(asks.flags)})
    return chosen, asks.question(asked)
