"""Read recipes of InferenceX as spaces: the launches and loads of one entry of its master config.

An entry names model, GPU (runner), precision and framework, and for each pair of prompt and output
lengths the degrees of parallelism and a range of clients, which double from step to step. Loads are
those of InferenceX's client: closed loops of ten requests per client, with lengths from 80 % to
100 % of the stated ones (github.com/SemiAnalysisAI/InferenceX, `.github/configs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from formats.serving_logs import inferencex_dtype, inferencex_engine, inferencex_gpu
from simulators.catalog.engine import load_engine
from simulators.catalog.model import load_model
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import ENGINES, MODELS

REQUESTS, LENGTH_SPREAD = 10, 0.2
LENGTHS = "seq-len-configs"
ENTRY = ("isl", "osl", "search-space")
LOAD = ("tp", "ep", "dp-attn", "conc-start", "conc-end", "conc-list", "spec-decoding")


def is_recipe(path: Path) -> bool:
    """Return whether a file is a master config of InferenceX."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return False
    entries = found.values() if isinstance(found, Mapping) else ()
    return any(isinstance(one, Mapping) and {"runner", "framework"} <= {*one} for one in entries)


def space_of_recipe(path: Path, name: str) -> str:
    """Return the space of an entry of a master config, as YAML.

    `name`: the entry; empty if the file has one.

    Raises:
        UserError: the entry is missing, spans nodes or pools, or a value is not modelled.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not name and len(entries) == 1:
        name = next(iter(entries))
    if name not in entries:
        raise UnknownNameError(
            "entry", name, [str(n) for n in entries], f"as in `show {path} NAME`"
        )
    where, entry = f"{path}: {name}", entries[name]
    if not isinstance(entry, Mapping) or "framework" not in entry:
        raise UserError(f"{where} names no framework")
    if entry.get("multinode") or entry.get("disagg"):
        raise UserError(f"{where}: entries with several nodes or separate pools are not read")
    model, gpu = str(entry.get("model", "")), inferencex_gpu(str(entry.get("runner", "")))
    engine = inferencex_engine(str(entry["framework"]))
    if not MODELS.has(model) or not gpu or engine not in ENGINES.names():
        raise UserError(
            f"{where}: model '{model}', runner '{entry.get('runner')}' or framework "
            f"'{entry['framework']}' is not in the catalog"
        )
    scenarios = entry.get("scenarios") or {}
    lengths = entry.get(LENGTHS) or scenarios.get("fixed-seq-len") or []
    union, drafted = [], 0
    for one in _list(lengths, f"{where}: {LENGTHS}"):
        for load in _list(one.get("search-space"), f"{where}: search-space"):
            if unknown := [key for key in load if key not in LOAD]:
                raise UserError(f"{where}: '{unknown[0]}' of a search space is not modelled")
            if load.get("spec-decoding", "none") != "none":
                drafted += 1
                continue
            union += [_point(one, load, clients, where) for clients in _clients(load, where)]
    if not union:
        raise UserError(
            f"{where} has no search space of fixed lengths without speculative decoding"
        )
    space = {
        "simulator": "serving",
        "axes": {
            "model": load_model(model).name,
            "gpu": gpu,
            "scheduler": load_engine(engine).schedulers[0],
            "dtype": inferencex_dtype(model, str(entry.get("precision", ""))),
            "arrivals.process": "closed",
            "lengths.spread": LENGTH_SPREAD,
        },
        "union": union,
    }
    text: str = yaml.safe_dump(space, sort_keys=False, default_flow_style=None)
    left_out = f"# Left out: {drafted} lines with speculative decoding.\n" if drafted else ""
    return f"# {name} of InferenceX, read from {path.name}.\n{left_out}{text}"


def _list(value: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise UserError(f"{where} is not a list of search spaces")
    return value


def _clients(load: Mapping[str, Any], where: str) -> list[int]:
    """Return the numbers of clients of a load."""
    if isinstance(listed := load.get("conc-list"), list):
        return [_count({"conc-list": n}, "conc-list", where) for n in listed]
    first, last = load.get("conc-start"), load.get("conc-end")
    if not isinstance(first, int) or not isinstance(last, int) or not 0 < first <= last:
        raise UserError(
            f"{where}: conc-start {first} to conc-end {last} is not a range of concurrencies"
        )
    found = [first]
    while found[-1] * 2 <= last:
        found.append(found[-1] * 2)
    return found if found[-1] == last else [*found, last]


def _point(
    lengths: Mapping[str, Any], load: Mapping[str, Any], clients: int, where: str
) -> dict[str, Any]:
    degrees = {"tp": 1, "ep": 1, **load}
    gpus, has_ranks = _count(degrees, "tp", where), bool(load.get("dp-attn"))
    return {
        "tp": 1 if has_ranks else gpus,
        "ep": _count(degrees, "ep", where),
        "attention_dp": gpus if has_ranks else 1,
        "prompt_tokens": _count(lengths, "isl", where),
        "output_tokens": _count(lengths, "osl", where),
        "arrivals.clients": clients,
        "requests": REQUESTS * clients,
    }


def _count(table: Mapping[str, Any], name: str, where: str) -> int:
    value = table.get(name)
    if not isinstance(value, int) or value < 1:
        raise UserError(f"{where}: {name} is {value!r}, not a whole number above zero")
    return value
