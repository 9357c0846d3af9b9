"""Measurements become the calibrations of this room: `python -m lab.fits.runtimes`.

    network                 how much of a link a large all-reduce sustains, by fabric
    runtimes/graphs         gaps and host time of engines that replay CUDA graphs
    runtimes/eager          host time to launch the kernels of a layer, in one process
    runtimes/eager_tp       the same where several processes, one a GPU, run in step
    bands                   what of a pass no kernel's interval explains
    clocks                  how far boards slow down while their matrix units are busy

Every fit minimises the mean |log(predicted / measured)|: a factor too high weighs as much as a
factor too low. Whole groups of rows are held out, never single rows; the rule stands in the header
of each file. The runtimes rest on the kernels' prices: fit them again when those change.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lab.fits.pass_intervals import configurations, shares
from lab.fits.deployments import fit_engines
from lab.tables.layers import BOARDS, LINEAR, LayerRows, layer_rows
from lab.tables.forward_passes import TABLES
from lab.tables.whole_passes import (
    CONCURRENT,
    SPLITWISE,
    TINYCHAT,
    Case,
    concurrent,
    splitwise,
    tinychat,
)
from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.composition import bands, clocks
from simulators.composition.family import fit_family
from simulators.composition.network import CALIBRATION, collective_s
from simulators.composition.overhead import ANY, Runtime
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.workload.operators import Collective

Floats = NDArray[np.float64]
RingErrors = Callable[[float], Floats]

NETWORK = "llm_ops/network.parquet"
LINKS = {
    "a100_dgx": ("dgx_a100", 300e9),
    "h100_dgx": ("dgx_h100", 450e9),
    "a100_pairwise_nvlink": ("pcie_server", 31.5e9),
    "h100_pairwise_nvlink": ("pcie_server", 63e9),
}
"""Nodes of the network table: whose links they have, and the data-sheet rate of those. In the
pairwise nodes a ring over four GPUs crosses PCIe."""

Rings = Sequence[tuple[str, int]]
RINGS: dict[str, tuple[Rings, Rings]] = {
    "nvlink3": ([("a100_dgx", 2), ("a100_dgx", 8)], [("a100_dgx", 4)]),
    "nvlink4": ([("h100_dgx", 2), ("h100_dgx", 8)], [("h100_dgx", 4)]),
    "pcie": ([("a100_pairwise_nvlink", 4)], [("h100_pairwise_nvlink", 4)]),
}
"""By fabric: the rings (node, GPUs) it is fitted to, and those held out."""

LARGE_BYTES = 2**20
"""Smaller messages were timed with the host's launch in them; they say nothing about the link."""

BUSY_TOKENS = 512
"""With more tokens than this the products of a layer are bound by arithmetic."""

NEGLIGIBLE_S = 1e-8
"""No wait of a host is shorter than some tens of cycles."""


def main() -> None:
    """Fit what is named, or everything, from the reference folder."""
    fits: dict[str, Callable[[Path], None]] = {
        "network": fit_network,
        "clocks": fit_clocks,
        "eager_tp": fit_eager_tp,
        "graphs": fit_graphs,
        "eager": fit_eager,
        "bands": fit_bands,
        "engines": fit_engines,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help=f"any of {', '.join(fits)}")
    parser.add_argument("--reference", type=Path, default=reference_folder())
    parser.add_argument(
        "--deployments", type=Path, help="measured rows of a family of one's own: a runtime of them"
    )
    arguments = parser.parse_args()
    if arguments.deployments is not None:
        try:
            print(fit_family(arguments.deployments))
        except (UserError, Infeasible) as error:
            sys.exit(f"fit: {error}")
        return
    if arguments.reference is None:
        raise UserError("no reference folder; set SWEEPER_REFERENCE or give --reference")
    for name in arguments.what or fits:
        fits[name](arguments.reference)


def fit_network(reference: Path) -> None:
    """Fit the sustained part of links to large all-reduces over 2 and 8 GPUs; 4 are held out."""
    table = _large_all_reduces(reference)
    sustained, held_out, rows = {}, [], 0
    for fabric, (train, test) in RINGS.items():
        errors = [_ring_errors(table, node, ranks) for node, ranks in train]

        def loss(fraction: float, errors: list[RingErrors] = errors) -> float:
            return float(np.mean(np.concatenate([error(fraction) for error in errors])))

        sustained[fabric] = min(_grid(0.3, 1.0, 0.005), key=loss)
        held_out += [_ring_errors(table, node, n)(sustained[fabric]) for node, n in test]
        rows += sum(error(1.0).size for error in errors)
    sustained["other"] = float(np.mean([sustained[fabric] for fabric in RINGS]))
    body = _header(
        reference,
        NETWORK,
        rows=rows,
        held_out=np.concatenate(held_out),
        split="DGX: rings of 2 and 8 fitted, 4 held out; PCIe: A100 fitted, H100 held out",
    )
    body += "\n[sustained]\n" + "".join(f"{k} = {v:.3f}\n" for k, v in sustained.items())
    write_calibration(CALIBRATION, body)


def fit_graphs(reference: Path) -> None:
    """Fit gaps and host time to dense models served on H100; tp 4 is held out."""
    cases = concurrent(reference, "h100_sxm")
    fitted, tested = _split(cases)

    def runtime(numbers: Floats) -> Runtime:
        return Runtime(
            name="graphs",
            layer_s=numbers[0],
            host_s=numbers[1],
            sequence_s=numbers[2],
            boards=("h100_sxm",),
        )

    start = np.array([1e-5, 1e-3, 1e-5])
    numbers = _descend(lambda x: _loss(fitted, runtime(x)), start)
    _write_runtime(
        reference,
        CONCURRENT,
        runtime(numbers),
        fitted,
        tested,
        "Llama-3.1 8B and 70B, aggregated, H100: tp 1, 2, 8 fitted; tp 4 held out",
    )


def fit_eager(reference: Path) -> None:
    """Fit the host's launching to batch-1 decodes on A100; the RTX 4090 is held out."""
    cases = [
        case
        for column in ("int4_awq_ms_per_token", "fp16_ms_per_token")
        for case in tinychat(reference, column)
    ]
    fitted, tested = _split(cases)

    def runtime(numbers: Floats) -> Runtime:
        return Runtime(
            name="eager",
            layer_s=0.0,
            host_s=numbers[0],
            sequence_s=0.0,
            launch_layer_s={"any": numbers[1]},
            boards=("a100_sxm",),
        )

    numbers = _descend(lambda x: _loss(fitted, runtime(x)), np.array([1e-4, 1e-4]))
    split = "decode at batch 1, 4-bit and fp16: A100 fitted, RTX 4090 held out"
    _write_runtime(reference, TINYCHAT, runtime(numbers), fitted, tested, split)


def fit_eager_tp(reference: Path) -> None:
    """Fit the host's launching to Llama-2-70B decodes at tp 2 and 8; tp 4 is held out.

    Then, to single prompts of the same splits, what prompts need more: launches, and tokens made
    of text.
    """
    decodes, held_out_decodes = _split(splitwise(reference, "token"))
    prompts, held_out_prompts = _split(splitwise(reference, "prompt"))

    def decoding(numbers: Floats) -> Runtime:
        return Runtime(
            name="eager_tp",
            layer_s=numbers[0],
            host_s=0.0,
            sequence_s=numbers[1],
            launch_layer_s=_by_host(numbers[2:4]),
            boards=("a100_sxm", "h100_sxm"),
            is_fused=False,
        )

    start = np.array([1e-5, 1e-5, 4e-4, 4e-4])
    decode_numbers = _descend(lambda x: _loss(decodes, decoding(x)), start)

    def prompting(numbers: Floats) -> Runtime:
        return dataclasses.replace(
            decoding(decode_numbers),
            prompt_layer_s=_by_host(numbers[0:2]),
            prompt_token_s={ANY: numbers[2]},
            prompt_ktoken_s={ANY: numbers[3]},
        )

    one_each = _distinct(prompts)
    start = np.array([6e-4, 6e-4, 1e-5, 6e-6])
    runtime = prompting(_descend(lambda x: _loss(one_each, prompting(x)), start))
    split = "Llama-2-70B on DGX A100 and H100, token and prompt times: tp 2, 8 fitted, 4 held out"
    off = np.concatenate([_errors(held_out_decodes, runtime), _errors(held_out_prompts, runtime)])
    rows = len(decodes) + len(prompts)
    body = _header(reference, SPLITWISE, rows=rows, held_out=off, split=split)
    write_calibration(_runtime_file(runtime), body + _runtime_body(runtime))


def fit_clocks(reference: Path) -> None:
    """Fit how far boards slow down to layers of many tokens; two models are held out."""
    shares, off, rows = {}, [], 0
    layers = layer_rows(reference)
    for board in BOARDS.values():
        mine = [one for one in layers if one.replica.gpu.name == board]
        fitted = [one for one in mine if not one.is_test]

        def loss(share: float, fitted: Sequence[LayerRows] = fitted) -> float:
            return float(np.mean(np.concatenate([_busy_errors(one, share) for one in fitted])))

        shares[board] = min(_grid(0.0, 1.0, 0.01), key=loss)
        off += [_busy_errors(one, shares[board]) for one in mine if one.is_test]
        rows += sum(int(np.sum(one.tokens > BUSY_TOKENS)) for one in fitted)
    share = np.array([*shares.values()])
    pressed = np.array([clocks.flops_per_j(load_gpu(board)) for board in shares])
    slope = float(np.polyfit(pressed, share, 1)[0])
    shares[clocks.OTHER] = float(share.mean())
    split = "layers of more than 512 tokens, A100, H100, A40; Llama-2-70B and Llama-3-70B held out"
    body = _header(reference, LINEAR, rows=rows, held_out=np.concatenate(off), split=split)
    line = {"flops_per_j": float(pressed.mean()), "slope": slope}
    tables = _table("slowdown", shares) + _table(clocks.LINE, line)
    write_calibration(clocks.CALIBRATION, body + tables)


def _busy_errors(layers: LayerRows, share: float) -> Floats:
    """Return |log error| of the layers that keep matrix units busy."""
    busy = layers.tokens > BUSY_TOKENS
    off: Floats = np.abs(np.log(layers.predicted_s(share) / layers.measured_s)[busy])
    return off


def fit_bands(reference: Path) -> None:
    """Fit what no kernel's interval explains of passes, on known boards and on new ones."""
    known = configurations(reference)
    share = shares(known)
    tables = dict.fromkeys(table.path for table in TABLES)
    header = _header(
        reference,
        *tables,
        rows=len(known),
        held_out=np.array([abs(np.log(one.predicted_s / one.measured_s)) for one in known]),
        split="known boards: configurations of the runtimes' fits; new ones: all; test: by device",
    )
    body = f"\n[unexplained]\nknown_boards = {share[True]:.3f}\nnew_boards = {share[False]:.3f}\n"
    write_calibration(bands.CALIBRATION, header + body)


def _by_host(numbers: Floats) -> dict[str, float]:
    """Return a number by host, and their mean for any other."""
    return {"dgx_a100": numbers[0], "dgx_h100": numbers[1], ANY: float(np.mean(numbers))}


def _distinct(cases: Sequence[Case]) -> list[Case]:
    """Return one case for all repeats of a configuration, with their mean time."""
    repeats: dict[tuple[str, float], list[Case]] = {}
    for case in cases:
        key = (case.group, float(case.terms[0].step.prefill_tokens))
        repeats.setdefault(key, []).append(case)
    return [
        dataclasses.replace(same[0], measured_s=float(np.mean([c.measured_s for c in same])))
        for same in repeats.values()
    ]


def _large_all_reduces(reference: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of large all-reduces within one node."""
    table = pq.read_table(reference / NETWORK).to_pydict()
    columns = {name: np.array(values) for name, values in table.items()}
    kept = (columns["op"] == "all_reduce") & (columns["size_bytes"] >= LARGE_BYTES)
    kept &= columns["num_workers"] == columns["devices_per_node"]
    return {name: column[kept] for name, column in columns.items()}


def _ring_errors(table: dict[str, NDArray[Any]], node: str, ranks: int) -> RingErrors:
    """Return the |log error| of each all-reduce of one ring, given the sustained part."""
    here = (table["node"] == node) & (table["num_workers"] == ranks)
    measured_s = np.asarray(table["min_ms"][here] * 1e-3, np.float64)
    name, rate = LINKS[node]
    link = dataclasses.replace(load_cluster(name).intra, bytes_per_s=rate)
    sizes = np.asarray(table["size_bytes"][here], np.float64)
    sent = Collective(name=node, kind="all_reduce", size_bytes=sizes, ranks=ranks)

    def errors(fraction: float) -> Floats:
        off: Floats = np.abs(np.log(collective_s(sent, link, fraction) / measured_s))
        return off

    return errors


def _split(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Return the cases fitted to and those held out."""
    return [c for c in cases if not c.is_test], [c for c in cases if c.is_test]


def _errors(cases: Sequence[Case], runtime: Runtime) -> Floats:
    return np.array([abs(np.log(c.predicted_s(runtime) / c.measured_s)) for c in cases])


def _loss(cases: Sequence[Case], runtime: Runtime) -> float:
    return float(_errors(cases, runtime).mean())


def _descend(loss: Callable[[Floats], float], start: Floats) -> Floats:
    """Return non-negative numbers of a small loss: one after another, in ever finer factors.

    What ends below `NEGLIGIBLE_S` is 0.
    """
    best, least = start, loss(start)
    for step in (4.0, 2.0, 1.4, 1.15, 1.05, 1.02):
        improved = True
        while improved:
            improved = False
            for trial in _neighbours(best, step):
                if (value := loss(trial)) < least - 1e-9:
                    best, least, improved = trial, value, True
    return np.where(best < NEGLIGIBLE_S, 0.0, best)


def _neighbours(x: Floats, step: float) -> Iterator[Floats]:
    for i in range(x.size):
        for factor in (step, 1.0 / step):
            trial = x.copy()
            trial[i] *= factor
            yield trial


def _grid(low: float, high: float, step: float) -> list[float]:
    return [float(x) for x in np.arange(low, high + step / 2, step)]


def _header(reference: Path, *tables: str, rows: int, held_out: Floats, split: str) -> str:
    digests = [sha256_of(reference / table) for table in tables]
    measured, digest = (tables[0], digests[0]) if len(tables) == 1 else (tables, digests)
    return (
        "# Written by `python -m lab.fits.runtimes`. To change a number, change the fit.\n"
        "[provenance]\n"
        f"measured = {json.dumps(measured)}\n"
        f"sha256 = {json.dumps(digest)}\n"
        f"rows = {rows}\n"
        f'split = "{split}"\n'
        f"held_out_rows = {held_out.size}\n"
        f"held_out_mape = {np.mean(np.expm1(held_out)):.3f}\n"
    )


def _write_runtime(
    reference: Path,
    table: str,
    runtime: Runtime,
    fitted: Sequence[Case],
    tested: Sequence[Case],
    split: str,
) -> None:
    held_out = _errors(tested, runtime)
    body = _header(reference, table, rows=len(fitted), held_out=held_out, split=split)
    write_calibration(_runtime_file(runtime), body + _runtime_body(runtime))


def _runtime_file(runtime: Runtime) -> Path:
    return PACKAGE / RUNTIMES.path / f"{runtime.name}.toml"


def _runtime_body(runtime: Runtime) -> str:
    """Return the numbers of a runtime as TOML."""
    body = f"\n[runtime]\nboards = {json.dumps(runtime.boards)}\n"
    if not runtime.is_fused:
        body += "is_fused = false\n"
    body += "".join(
        f"{name} = {getattr(runtime, name):.3g}\n" for name in ("layer_s", "host_s", "sequence_s")
    )
    for name in ("launch_layer_s", "prompt_layer_s", "prompt_token_s", "prompt_ktoken_s"):
        if numbers := getattr(runtime, name):
            body += _table(f"runtime.{name}", numbers)
    return body


def _table(name: str, numbers: Mapping[str, float]) -> str:
    return f"\n[{name}]\n" + "".join(f"{k} = {v:.3g}\n" for k, v in numbers.items())


if __name__ == "__main__":
    main()
