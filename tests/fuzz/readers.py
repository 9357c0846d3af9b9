"""Everything that reads what a user wrote, each with good files to begin from."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from planning.load_tests.serving import read_log
from simulators.catalog.accelerator import load_accelerator
from simulators.catalog.cluster import load_cluster
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.catalog.price import load_prices
from simulators.collectives.topologies.plan import load_topology
from simulators.collectives.traces.operators import read_graph
from simulators.composition.replica import load_runtime
from simulators.core.folder import FOLDERS
from simulators.serving.demand.workloads import load_trace, load_workload
from simulators.serving.prices.user_operator_times import load_op_table
from sweeper.__main__ import main
from sweeper.commands.run import requested_sweep
from sweeper.report.answers import latest
from sweeper.space.design_space import objectives, space_of, where
from sweeper.space.space_file import parse_space, read_space
from sweeper.space.sql import condition
from tests.fuzz.mutations import NASTY, mutated

TOY = b"""\
# A question
simulator: tests.toys.quadratic
axes: {x: 1..3, y: [4, 5], n: 1, label: [a, b]}
zip: [[y, label]]
derived: {twice: x * 2}
constraints: ["x > 1", "n < 5"]
where: cost_usd < 10
objectives: {cost_usd: min, gain: max}
"""
LOG = json.dumps({"mean_ttft_ms": 31.5, "median_tpot_ms": 7.25, "request_throughput": 1.5}).encode()
PRINTED = b"Mean TTFT (ms): 31.5\nP99 TPOT (ms): 8.1\nRequest throughput (req/s): 1.5\n"
CONFIG = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "text_config": {},
        "num_experts_per_tok": 0,
    }
).encode()
TRACE = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1.5,20,6\n"
LINES = b'{"timestamp": 0, "input_length": 10, "output_length": 5}\n' * 3
TABLE = b"op,a,b,ms\nattn_decode,1,0,0.5\nattn_decode,8,128,0.7\nmlp_up_proj,1,0,0.1\n"
GRAPH = json.dumps({"schema": "1.0", "nodes": [{"id": 1, "name": "a", "attrs": []}]}).encode()


@dataclass(frozen=True)
class Reader:
    """Something that reads a file."""

    name: str  # of the file that it reads
    read: Callable[[Path], object]
    seeds: Callable[[], list[bytes]]
    weight: int = 1


def _space(file: Path) -> None:
    written = read_space(file, complete=True)
    space = space_of(written)
    where(parse_space(written), space)
    objectives(parse_space(written), space)
    space.removed()


def _overridden(file: Path) -> None:
    Path("mine.yaml").write_bytes(TOY)
    words = file.read_bytes().decode(errors="replace").split("\n")
    requested_sweep(["+space=mine.yaml", *filter(None, words)])


def _where(file: Path) -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0], "label": ["a", "b"], "n": [1, None]})
    text = file.read_bytes().decode(errors="replace")
    frame.lazy().filter(condition(text, frame.schema)).collect()


@functools.cache
def _answered() -> Path:
    """Return a folder with the answers to a space."""
    folder = Path("answered").resolve()
    shutil.rmtree(folder, ignore_errors=True)  # of a worker before this one
    folder.mkdir()
    here = Path.cwd()
    os.chdir(folder)
    try:
        Path("spaces").mkdir(exist_ok=True)
        Path("spaces/mine.yaml").write_bytes(TOY)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main(["+space=mine", "plot=false", "engine=inline"]) == 0
    finally:
        os.chdir(here)
    return folder / "outputs"


def _stored(pattern: str) -> Callable[[Path], None]:
    """Return a reader that replaces a stored file of a sweep and queries the results."""

    def read(file: Path) -> None:
        shutil.rmtree("outputs", ignore_errors=True)
        shutil.copytree(_answered(), "outputs")
        (written,) = Path("outputs").glob(pattern)
        shutil.copy(file, written)
        found = latest("mine", "outputs")
        found.front  # noqa: B018 - is computed

    return read


def _kept(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [file.read_bytes() for file in _answered().glob(pattern)]


def _shipped(kind: str) -> Callable[[], list[bytes]]:
    """Return the contents of a few small files of a kind that are shipped."""

    def seeds() -> list[bytes]:
        files = sorted(
            FOLDERS[kind].shipped.glob("*.toml"), key=lambda f: (f.stat().st_size, f.name)
        )
        return [file.read_bytes() for file in files[:5]]

    return seeds


def _by_path(load: Callable[..., object], **more: Any) -> Callable[[Path], object]:
    return lambda file: load(f"./{file}", **more)


_DEFINITION, _CONFIG = "mine/runs/*/definition.json", "mine/runs/*/config.json"
_PART = "mine/results/*/*.parquet"
READERS: Mapping[str, Reader] = {
    "space": Reader("space.yaml", _space, lambda: [TOY], 6),
    "overrides": Reader(
        "words.txt",
        _overridden,
        lambda: [
            b"space.axes.x=[1,2]",
            b"sampler=random\nsampler.points=5",
            b"engine=inline",
            b"failures.max=3\nfailures.timeout_s=5",
            b"space.where=cost_usd < 3",
            b"outputs=there",
        ],
    ),
    "where": Reader(
        "where.txt",
        _where,
        lambda: [
            b"x > 1 AND label = 'a'",
            b"n IN (1, 2) OR CASE WHEN x > 1 THEN TRUE ELSE FALSE END",
            b"ABS(x) + LENGTH(label) > n",
            b"label LIKE 'a%' AND NOT (n IS NULL)",
        ],
        6,
    ),
    "definition": Reader("definition.json", _stored(_DEFINITION), _kept(_DEFINITION)),
    "config of a run": Reader("config.json", _stored(_CONFIG), _kept(_CONFIG)),
    "part": Reader("part.parquet", _stored(_PART), _kept(_PART)),
    "gpu": Reader("gpu.toml", _by_path(load_gpu), _shipped("gpu"), 3),
    "model": Reader("model.toml", _by_path(load_model), _shipped("model"), 3),
    "cluster": Reader("cluster.toml", _by_path(load_cluster), _shipped("cluster"), 2),
    "accelerator": Reader("pe.toml", _by_path(load_accelerator), _shipped("accelerator"), 3),
    "price": Reader("price.toml", _by_path(load_prices), _shipped("price"), 2),
    "topology": Reader("net.toml", _by_path(load_topology), _shipped("topology"), 2),
    "workload": Reader("demand.toml", _by_path(load_workload), _shipped("workload"), 2),
    "runtime": Reader("runtime.toml", _by_path(load_runtime), _shipped("runtime"), 2),
    "serving engine": Reader("engine.toml", _by_path(load_engine), _shipped("serving engine"), 2),
    "model configuration": Reader("config.json", _by_path(load_model), lambda: [CONFIG], 4),
    "trace": Reader("trace.csv", _by_path(load_trace), lambda: [TRACE], 3),
    "trace of lines": Reader("trace.jsonl", _by_path(load_trace), lambda: [LINES], 2),
    "log": Reader(
        "log.txt",
        lambda file: read_log(file.read_text(errors="replace"), "log"),
        lambda: [LOG, PRINTED, LOG + b"\n" + LOG],
        4,
    ),
    "operator times": Reader(
        "times.csv", _by_path(load_op_table, layers=2, tp=1), lambda: [TABLE], 2
    ),
    "collectives": Reader("graph.json", lambda file: read_graph(file), lambda: [GRAPH], 2),
}


def case(number: int) -> tuple[str, bytes]:
    """Return the reader and the content of a numbered case."""
    dice = random.Random(number)  # noqa: S311 - dice
    names = [name for name, reader in READERS.items() for _ in range(reader.weight)]
    name = dice.choice(names)
    seed = dice.choice(_seeds(name))
    return name, dice.choice(NASTY) if dice.random() < 0.03 else mutated(seed, dice)


@functools.cache
def _seeds(name: str) -> list[bytes]:
    return READERS[name].seeds()
