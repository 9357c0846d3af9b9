"""Measured kernels of sparse attention: scores of an indexer, choice of keys, attention to lists.

`indexers.toml` names the tables and the sizes that their rows lack. A shape falls on one side of
the split on all GPUs and for all frameworks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.tables.kernels import existing
from lab.tables.rows import Floats, Record, Rows, Sizes, by_labels, first, group_of, numbers, tidy
from simulators.core.folder import read_toml
from simulators.kernels.families.attention import LISTED
from simulators.kernels.families.auxiliary_kernels import INDEX_DTYPE
from simulators.workload import operators

FACTS = Record(read_toml(Path(__file__).with_suffix(".toml")))

SIZES = ("batch_size", "isl", "step", "num_heads")


def read_index_rows(reference: Path, gpu: str) -> Iterator[Rows]:
    """Yield scores and choices of one GPU, by table and framework."""
    for name, facts in FACTS.scores.items():
        kernel, make = f"index_scores_{facts['phase']}", partial(_scores, facts)
        yield from _read(reference, name, gpu, make, kernel=kernel, dtype=INDEX_DTYPE)
    for name, facts in FACTS.choices.items():
        choice, labels = partial(_choice, facts), {"kernel": "index_choice", "dtype": "fp32"}
        yield from _read(reference, name, gpu, choice, facts["mode"], **labels)


def read_list_rows(reference: Path, gpu: str) -> Iterator[Rows]:
    """Yield attention to lists of keys of one GPU, by table and framework."""
    for name, facts in FACTS.lists.items():
        dtype, make = f"bf16_{facts['kv_dtype']}", partial(_listed, facts)
        kernel = f"{LISTED}_{facts['cached']:.0f}"
        yield from _read(reference, name, gpu, make, kernel=kernel, dtype=dtype)


def _read(
    reference: Path,
    name: str,
    gpu: str,
    make: Callable[[Sizes], Any],
    only: str = "",
    **labels: Any,
) -> Iterator[Rows]:
    for table in existing(reference / FACTS.folder / f"{name}.parquet", gpu=gpu):
        chosen = table.filter(pc.equal(table["score_mode"], only)) if only else table
        for (framework,), rows in by_labels(chosen, "framework"):
            if rows.num_rows >= FACTS.least_rows:
                yield _rows(rows, make, gpu=gpu, framework=framework, **labels)


def _rows(table: pa.Table, make: Callable[[Sizes], Any], **labels: Any) -> Rows:
    sizes = numbers(table, (*SIZES, "latency_us"))
    seconds = sizes.pop("latency_us") * 1e-6
    labels |= {"version": first(table, "version"), "operator_of": make}
    return tidy(sizes, seconds, group_of(sizes.values()), **labels)


def _sums(sizes: Sizes, ratio: float) -> dict[str, Any]:
    """Return the sums over requests whose queries see one key per `ratio` tokens so far."""
    requests, new, past = sizes["batch_size"], sizes["isl"], sizes["step"]
    ends = np.maximum(np.floor((past + new) / ratio), 1.0)
    seen = np.maximum((new * past + new * (new + 1.0) / 2.0) / ratio, new)
    queries = requests * new
    return {
        "requests": requests,
        "query_tokens": queries,
        "pairs": requests * np.minimum(seen, new * ends),
        "kv_tokens": requests * ends,
    }


def _scores(facts: Mapping[str, Any], sizes: Sizes) -> operators.IndexScores:
    return operators.IndexScores(
        name="index_scores",
        phase=facts["phase"],
        **_sums(sizes, facts["ratio"]),
        heads=facts["heads"],
        head_dim=128.0,
        dtype=INDEX_DTYPE,
        in_loop=True,
    )


def _choice(facts: Mapping[str, Any], sizes: Sizes) -> operators.IndexChoice:
    by_heads = {float(heads): top_k for heads, top_k in facts["top_k"].items()}
    top_k = np.array([by_heads[heads] for heads in sizes["num_heads"].tolist()])
    sums = _sums(sizes, facts["ratio"])
    return operators.IndexChoice(name="index_choice", **sums, top_k=top_k, in_loop=True)


def _listed(facts: Mapping[str, Any], sizes: Sizes) -> operators.Attention:
    """Return the attention; whole lists are computed, but only keys that exist are gathered."""
    requests, new, past = sizes["batch_size"], sizes["isl"], sizes["step"]
    queries = requests * new
    keys = requests * _limited(new, past, facts["top_k"] or facts["window"])
    if facts["top_k"]:
        pairs = queries * facts["top_k"]
    else:
        pairs = keys = keys + requests * (new * past + new * (new + 1.0) / 2.0) / facts["ratio"]
    return operators.Attention(
        name="listed_attention",
        phase="decode",
        requests=requests,
        query_tokens=queries,
        pairs=pairs,
        kv_tokens=keys,
        context_tokens=requests * (past + new),
        heads=sizes["num_heads"],  # type: ignore[arg-type]  # a table has a head count per row
        kv_heads=facts["cached"] / (2.0 * facts["head_dim"]),
        head_dim=facts["head_dim"],
        dtype="bf16",
        kv_dtype=facts["kv_dtype"],
        latent=True,
        listed=True,
    )


def _limited(new: Floats, past: Floats, most: float) -> Floats:
    """Return the keys of a chunk's queries, each of which sees at most `most`."""
    few = np.clip(most - past, 0.0, new)
    return few * past + few * (few + 1.0) / 2.0 + (new - few) * most
