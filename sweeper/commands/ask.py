"""A question by flags: model, GPUs, load and deadlines in, a deployment out. No YAML needed.

The question is written down as a space like any other, swept, and answered by the cheapest design
that meets the deadlines; the sweep stays, so that every other command can go on from it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.contract import deploys, load_simulator
from simulators.core.errors import UserError
from sweeper.commands import run
from sweeper.commands.designs import point_of
from sweeper.commands.flags import at_least, flags
from sweeper.commands.record import Answered, latest
from sweeper.commands.summary import notes_of, units_of
from sweeper.commands.written import write_text
from sweeper.evidence import evidence
from sweeper.keys import SHOWN, keys
from sweeper.planning import cheapest
from sweeper.query import qualifying
from sweeper.uncertainty import Z90
from sweeper.units import human

_ENGINES = {"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"}
"""The engines that can be asked for, and the scheduler of each; runtimes bear the same names."""
_SHOWN = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "tokens_per_s", "mean_batch")
_COST = "cost_usd_per_mtok"
_CANDIDATES = 1000
"""Designs that meet the deadlines among which a sure one is looked for, the cheapest first."""


def main(words: list[str]) -> int:
    """Ask, sweep and print the answer; exit code 1 when no design meets the deadlines."""
    asked = _parsed(words)
    name, space = _space(asked)
    file = Path(asked.outputs) / "spaces" / f"{name}.yaml"
    write_text(file, _yaml(space))
    from sweeper.__main__ import compose

    question = run.question(
        compose([f"+space={file}", f"outputs={asked.outputs}", f"engine={asked.engine_}"])
    )
    if sum(question.space.removed().values()) == question.space.size:
        raise UserError(
            f"{asked.model} in {asked.dtype} does not fit on {asked.gpus} {asked.gpu}; take more "
            "(--gpus), larger ones (--gpu) or a smaller precision (--dtype fp8 or w4a16)"
        )
    run.sweep(question)
    last = latest(name, asked.outputs)
    try:
        best = cheapest(last.store.scan(), _COST, str(last.where), count=_CANDIDATES)
    except UserError:
        return _nothing(asked, last)
    best = best.insert_column(0, keys(last.store.definition, best))
    rows = [row | {"chance": _sure(asked, row)[0]} for row in best.iter_rows(named=True)]
    sure = [row for row in rows if row["chance"] >= asked.sure]
    first = sure[0] if sure else max(rows, key=lambda row: row["chance"])
    if asked.json:
        print(json.dumps(_as_json(asked, last, first, rows, name), indent=1, default=str))
    else:
        _print(asked, last, first, rows, name)
    return 0


def _parsed(words: list[str]) -> argparse.Namespace:
    parser = flags("ask", "the cheapest deployment that carries a load within its deadlines")
    parser.add_argument("--model", required=True, help="a model of the catalog, or a config.json")
    parser.add_argument("--gpu", required=True, help="GPUs to choose from, as in h100_sxm,l40s")
    parser.add_argument(
        "--gpus", type=at_least(1), default=8, help="how many there are (default 8)"
    )
    parser.add_argument("--workload", default="chat", help="chat, code, or the path of a trace")
    parser.add_argument("--qps", type=float, default=1.0, help="requests per second (default 1)")
    parser.add_argument(
        "--ttft", type=float, default=1.0, help="deadline of the first token (default 1 s)"
    )
    parser.add_argument(
        "--tpot", type=float, default=0.05, help="deadline of later tokens (default 0.05 s)"
    )
    parser.add_argument(
        "--percentile",
        type=int,
        default=99,
        choices=(50, 90, 95, 99),
        help="of requests that meet the deadlines (default 99)",
    )
    parser.add_argument("--budget", type=float, help="$ per hour that may be spent")
    parser.add_argument("--dtype", default="bf16", help="precisions to choose from (default bf16)")
    parser.add_argument("--engine", default="vllm", help=f"of {', '.join(_ENGINES)}")
    parser.add_argument("--requests", type=at_least(1), default=1000, help="simulated per design")
    parser.add_argument(
        "--sure", type=float, default=0.8, help="how likely the deadlines are to be met (0.8)"
    )
    parser.add_argument(
        "--band", type=float, default=0.2, help="half the 90 %% interval where none is stated"
    )
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument(
        "--run-with", dest="engine_", metavar="HOW", default="auto", help="inline, ray or auto"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    for what in ("qps", "ttft", "tpot"):
        if not getattr(asked, what) > 0:
            raise UserError(f"--{what} {getattr(asked, what):g}: write a number above zero")
    for engine in asked.engine.split(","):
        if engine not in _ENGINES:
            raise UserError(f"--engine {engine}: choose from {', '.join(_ENGINES)}")
    return asked


def _space(asked: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the space that the question describes, and a name for it."""
    share = asked.percentile
    slo = f"ttft_p{share}_s <= {asked.ttft:g} AND tpot_p{share}_s <= {asked.tpot:g}"
    where = f"{slo} AND NOT saturated"
    if asked.budget is not None:
        where += f" AND {_COST} * tokens_per_s * 0.0036 <= {asked.budget:g}"
    powers = [2**i for i in range(int(math.log2(asked.gpus)) + 1)]
    space = {
        "simulator": "serving",
        "axes": {
            "model": asked.model,
            "gpu": asked.gpu.split(","),
            "workload": asked.workload,
            "tp": [n for n in powers if n <= 8],
            "pp": [n for n in powers if n <= 4],
            "replicas": sorted({*powers, asked.gpus, max(1, asked.gpus * 3 // 4)}),
            "chunk_size": [512, 2048, 8192],
            "max_batch": [64, 256],
            "dtype": asked.dtype.split(","),
            "qps": asked.qps,
            "requests": asked.requests,
            "slo_ttft_s": asked.ttft,
            "slo_tpot_s": asked.tpot,
        },
        "union": [{"scheduler": _ENGINES[e], "runtime": e} for e in asked.engine.split(",")],
        "constraints": [f"gpus <= {asked.gpus}", "weight_bytes_per_gpu < 0.9 * hbm_bytes"],
        "where": where,
        "objectives": {_COST: "min", f"ttft_p{share}_s": "min", f"tpot_p{share}_s": "min"},
    }
    mark = hashlib.blake2b(json.dumps(space).encode(), digest_size=3).hexdigest()
    return f"ask_{Path(asked.model).stem}_{mark}", space


def _yaml(space: Mapping[str, Any]) -> str:
    """Return a space as a file: JSON is YAML."""
    axes = space["axes"]
    question = f"# How is {axes['model']} best served at {axes['qps']:g} requests per second?\n"
    return (
        question + "\n".join(f"{key}: {json.dumps(value)}" for key, value in space.items()) + "\n"
    )


def _print(
    asked: argparse.Namespace,
    last: Answered,
    row: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    name: str,
) -> None:
    units = units_of(last.space)
    hourly = row[_COST] * row["tokens_per_s"] * 0.0036
    print(f"\n{_design(row, last)}")
    print(f"  {human(row[_COST], '$')} per million tokens, {human(hourly, '$')} an hour")
    print(f"  {', '.join(f'{n} {human(row[n], units[n])}' for n in _SHOWN if row.get(n))}")
    chance, source = _sure(asked, row)
    share = asked.percentile
    ttft, tpot = human(asked.ttft, "s"), human(asked.tpot, "s")
    print(f"Deadlines: ttft_p{share}_s <= {ttft}, tpot_p{share}_s <= {tpot}.")
    print(f"How sure: meets both deadlines with {chance:.0%} ({source}).")
    print(f"  {evidence(last.space.simulator).in_short()}")
    if (second := _next_best(row, rows)) is not None:
        change = second[_COST] / row[_COST] - 1
        word = "Cheaper" if change < 0 else "Next best"
        said = f"{word}, {change:+.0%} in cost, {second['chance']:.0%} sure"
        print(f"{said}: {_design(second, last)}")
    for note in notes_of(last.space):
        print(note)
    print(f"\n{_deployment(last, row, name)}")
    key = row["key"][:SHOWN]
    print(f"Next   python -m sweeper report {name}{_outputs(asked)}")
    print(f"       python -m sweeper export {name} {key} --target kubernetes{_outputs(asked)}")


def _outputs(asked: argparse.Namespace) -> str:
    return "" if asked.outputs == "outputs" else f" --outputs {asked.outputs}"


def _design(row: Mapping[str, Any], last: Answered) -> str:
    copies = f"{row['replicas']} × " if row["replicas"] > 1 else ""
    cut = f"tp {row['tp']}" + (f", pp {row['pp']}" if row["pp"] > 1 else "")
    gpus = row["tp"] * row["pp"]
    engine = next((e for e, s in _ENGINES.items() if s == row["scheduler"]), row["scheduler"])
    varied = [n for n in ("dtype", "max_batch", "chunk_size") if n in last.space.varied]
    rest = ", ".join(f"{n} {human(row[n])}" for n in varied)
    return f"{copies}{gpus} {row['gpu']} ({cut}), {engine}{f', {rest}' if rest else ''}"


def _sure(asked: argparse.Namespace, row: Mapping[str, Any]) -> tuple[float, str]:
    """Return the chance that a design meets both deadlines, and what that rests on."""
    normal, chance, stated = statistics.NormalDist(), 1.0, True
    for kind, limit in (("ttft", asked.ttft), ("tpot", asked.tpot)):
        metric = f"{kind}_p{asked.percentile}_s"
        # An interval is a share of its value, alike for a mean and a percentile.
        low, high = row.get(f"{kind}_mean_s_lo"), row.get(f"{kind}_mean_s_hi")
        middle = 0.0
        if low and high:
            sigma = math.log(high / low) / (2 * Z90)
            middle = math.log(low * high) / 2 - math.log(row[f"{kind}_mean_s"])
        else:
            sigma, stated = math.log1p(asked.band) / Z90, False
        if row[metric] and sigma:
            chance *= normal.cdf((math.log(limit / row[metric]) - middle) / sigma)
    assumed = f"if predictions err by up to {asked.band:.0%}, nine times in ten"
    return chance, "by the intervals the simulator states" if stated else assumed


def _next_best(
    first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the cheapest design on other hardware, or cut or replicated otherwise."""
    hardware = ("gpu", "tp", "pp", "replicas", "dtype")
    return next((row for row in rows if any(row[n] != first[n] for n in hardware)), None)


def _deployment(last: Answered, row: Mapping[str, Any], name: str) -> str:
    simulator = load_simulator(last.space.simulator)
    writer = deploys(simulator)
    assert writer is not None
    try:
        return writer.deployment(point_of(simulator, row), "", f"{name} {row['key'][:SHOWN]}")
    except UserError as refusal:
        return f"No command: {refusal}\n"


def _as_json(
    asked: argparse.Namespace,
    last: Answered,
    row: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    name: str,
) -> dict[str, Any]:
    return {
        "space": name,
        "design": row,
        "chance": row["chance"],
        "chance_rests_on": _sure(asked, row)[1],
        "next_best": _next_best(row, rows),
        "command": _deployment(last, row, name),
        "notes": list(notes_of(last.space)),
    }


def _nothing(asked: argparse.Namespace, last: Answered) -> int:
    """Say that nothing meets the deadlines, and which design comes nearest."""
    share, results = asked.percentile, qualifying(last.store.scan())
    print(f"\nNo design on at most {asked.gpus} of {asked.gpu} meets {last.where}.")
    ttft, tpot = pl.col(f"ttft_p{share}_s") / asked.ttft, pl.col(f"tpot_p{share}_s") / asked.tpot
    near = results.with_columns(miss=pl.max_horizontal(ttft, tpot)).bottom_k(1, by="miss").collect()
    if len(near):
        row = near.row(0, named=True)
        said = ", ".join(
            f"{n} {human(row[n], 's')}" for n in (f"ttft_p{share}_s", f"tpot_p{share}_s")
        )
        full = "; its backlog grows" if row["saturated"] else ""
        print(f"Nearest: {_design(row, last)}: {said}{full}.")
        print("More or faster GPUs (--gpus, --gpu), fewer requests (--qps) or a smaller precision")
        print("(--dtype fp8) would help.")
    else:
        word = pl.col("reason").cast(pl.String).str.split(":").list.first()
        counted = last.store.scan().group_by(word).len().sort("len", descending=True).collect()
        print("None of them is feasible:")
        for reason, count in counted.rows():
            print(f"  {count:,} {reason}")
    return 1
