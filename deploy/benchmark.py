"""Commands of benchmark clients that send the load of a serving design.

`vllm bench serve` and SGLang's `bench_serving` draw lengths themselves: the load must have stated
lengths, with Poisson arrivals or a fixed concurrency. AIPerf also replays a trace, so it sends any
load of single requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from deploy.templates import filled
from simulators.catalog.engine import load_engine
from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.core.folder import Folder
from simulators.serving.demand.requests import requests_of
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.options import CLOSED, POISSON, WHOLE
from simulators.serving.point import ServingPoint

CLIENTS = Folder("benchmark client", "benchmarks", ".jinja", package="deploy")
"""Templates of commands."""
REPLAYS = "aiperf"
"""Client that replays traces."""


class Benchmark(NamedTuple):
    """A benchmark of a design, and the fields with which the design counts as the client does."""

    command: str
    trace: str  # JSONL to be replayed; empty for stated lengths
    counted: Mapping[str, object]


def benchmark(
    point: ServingPoint, engine: str, repository: str, client: str, trace: str
) -> Benchmark:
    """Return the benchmark of a design.

    Args:
        point: the design.
        engine: its engine.
        repository: the Hugging Face repository of its model.
        client: name of a file of `benchmarks/`; empty: the engine's own client, if it can send the
            load, else the one that replays traces.
        trace: name of the trace file that the command reads.

    Raises:
        UnknownNameError: the client is unknown.
        UserError: the client cannot send the load.
    """
    for what, is_asked in (
        ("sessions of agents", has_sessions(point.workload)),
        ("turns of sessions", point.sessions.turns > 1),
        ("a shared system prompt", point.sessions.system_prompt_tokens > 0),
        ("think times", point.client.think_s > 0.0),
        ("requests for several adapters", point.lora.adapters > 0),
    ):
        if is_asked:
            raise UserError(f"no command is written for a benchmark with {what}")
    sent = requests_of(point)
    is_closed = point.arrivals.process == CLOSED
    is_stated = bool(point.prompt_tokens and point.output_tokens) and (
        point.lengths.shape != "as_workload" and not point.lengths.max_output_tokens
    )
    is_drawn = is_stated and (is_closed or (point.arrivals.process == POISSON and point.qps))
    client = client or (engine if is_drawn and engine in CLIENTS.names() else REPLAYS)
    template = CLIENTS.find(client)
    if not is_drawn and client != REPLAYS:
        raise UserError(
            f"{client} cannot send these lengths or arrivals: --benchmark {REPLAYS} replays "
            "them; or state prompt_tokens and output_tokens, with Poisson arrivals or clients"
        )
    arrivals_ms = (
        None if is_closed else (1e3 * (sent.arrival_s - sent.arrival_s[0])).round(3).tolist()
    )
    lengths = zip(sent.prompt_tokens.tolist(), sent.output_tokens.tolist(), strict=True)
    rows = [
        {"input_length": prompt, "output_length": output}
        | ({} if arrivals_ms is None else {"timestamp": arrivals_ms[i]})
        for i, (prompt, output) in enumerate(lengths)
    ]
    command = filled(
        template,
        point=point,
        repository=repository,
        model=load_model(point.model),
        port=load_engine(engine).port,
        count=len(rows),
        trace="" if is_drawn else trace,
        concurrency=point.arrivals.clients if is_closed else 0,
    )
    text = "" if is_drawn else "".join(f"{json.dumps(row)}\n" for row in rows)
    return Benchmark(command, text, {"measurement.window": WHOLE})
