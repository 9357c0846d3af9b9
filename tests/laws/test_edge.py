"""Laws of networks on edge devices."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planning.calibrate.edge import text_of
from simulators.core.calibration import read_calibration
from simulators.edge.simulator import (
    BLOCKS,
    EDGE_FIELDS,
    FBNET_STAGES,
    OFA_DEPTH,
    OFA_STAGES,
    OPERATIONS,
    SIMULATOR,
    Weights,
    calibration_of,
    cell_text,
    device,
)
from tests.laws.laws import Laws, Mask, Sample, at_most, close, one_of

DEVICES = {
    space: tuple(read_calibration(calibration_of(space))["devices"])
    for space in ("nb201", "fbnet", "ofa")
}


def network_of(space: str, dice: np.random.Generator) -> str:
    """Return a random network; half of the cells are given by their six edges."""
    if space == "nb201":
        cell = cell_text([str(one) for one in dice.choice(OPERATIONS, len(EDGE_FIELDS))])
        return cell if dice.random() < 0.5 else ""
    if space == "fbnet":
        return " ".join(dice.choice(("skip", *BLOCKS), sum(FBNET_STAGES)).tolist())
    blocks = OFA_STAGES * OFA_DEPTH
    return json.dumps(
        {
            "ks": dice.choice((3, 5, 7), blocks).tolist(),
            "e": dice.choice((3, 4, 6), blocks).tolist(),
            "d": dice.choice((2, 3, 4), OFA_STAGES).tolist(),
            "r": int(dice.choice((160, 176, 192, 208, 224))),
        }
    )


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point with a device and a network of its search space."""
    dice, space = np.random.default_rng(point["network"]), point["search_space"]
    return point | {
        "network": network_of(space, dice),
        "device": DEVICES[space][point["device"] % len(DEVICES[space])],
    }


LAWS = Laws(
    SIMULATOR,
    draws={
        "device": lambda dice: int(dice.integers(1000)),
        "network": lambda dice: int(dice.integers(10**9)),
        "search_space": one_of("nb201", "fbnet", "ofa"),
        "accuracy": one_of(""),
    }
    | {name: one_of(*OPERATIONS) for name in EDGE_FIELDS},
    consistent=consistent,
)
law = LAWS.law


def cells(sample: Sample) -> Mask:
    """Return the rows with a cell of NAS-Bench-201."""
    return np.asarray(sample["search_space"] == "nb201")


def cell_of(point: dict[str, Any]) -> str:
    """Return the text of a point's cell."""
    return point["network"] or cell_text([point[name] for name in EDGE_FIELDS])


def changed_ofa(point: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return a point with other values of its OFA network; other networks stay."""
    if point["search_space"] != "ofa":
        return point
    network = json.loads(point["network"])
    found = {key: value(network) for key, value in values.items()}
    return point | {"network": json.dumps(network | found)}


def equal_with(sample: Sample, network: Any) -> Mask:
    """Return where the points have the same latency and interval with `network(point)`."""
    pair = sample.changed(network=network)
    names = ("latency_s", "latency_s_lo", "latency_s_hi")
    return np.all([pair.holds(partial(close, relative=1e-12), name) for name in names], axis=0)


@law
def every_network_has_an_answer(sample: Sample) -> Mask:
    """Every network of a search space has a finite positive latency on every device."""
    assert sample.feasible.all()
    return (sample["latency_s"] > 0.0) & np.isfinite(sample["latency_s"])


@law
def interval_contains_the_latency(sample: Sample) -> Mask:
    """The 90 % interval contains the latency; its lower end is positive."""
    low, middle, high = (sample[f"latency_s{end}"] for end in ("_lo", "", "_hi"))
    return at_most(low, middle) & at_most(middle, high) & (low > 0.0) & np.isfinite(high)


@law
def shares_of_evidence_sum_to_one(sample: Sample) -> Mask:
    """The shares of measured, fitted, extrapolated and data-sheet time sum to one."""
    names = ("measured_share", "fitted_share", "extrapolated_share", "datasheet_share")
    return close(sum(np.nan_to_num(sample[name]) for name in names), 1.0)


@law
def only_cells_have_cell_macs(sample: Sample) -> Mask:
    """Multiply-accumulates are known for the cells of NAS-Bench-201, and for nothing else."""
    return np.isnan(sample["cell_macs"]) == ~cells(sample)


@law
def macs_are_the_sum_of_the_edges(sample: Sample) -> Mask:
    """A 3x3 convolution has nine times the multiply-accumulates of a 1x1 convolution."""
    taps = sample.per_row(
        lambda p: cell_of(p).count("nor_conv_1x1") + 9 * cell_of(p).count("nor_conv_3x3")
    )
    return ~cells(sample) | close(sample["cell_macs"], 15 * 16**2 * 32**2 * taps)


@law
def no_accuracy_without_a_file(sample: Sample) -> Mask:
    """Accuracy comes from the user's file alone."""
    return np.isnan(sample["accuracy_proxy"])


@law
def two_notations_of_a_cell_agree(sample: Sample) -> Mask:
    """A cell as text has the latency of its six edges."""
    return equal_with(
        sample, lambda p: cell_of(p) if p["search_space"] == "nb201" else p["network"]
    )


@law
def edges_matter_only_without_a_network(sample: Sample) -> Mask:
    """The six edges have no effect beside a network in text."""
    pair = sample.changed(**dict.fromkeys(EDGE_FIELDS, "nor_conv_3x3"))
    named = sample.per_row(lambda p: p["network"] != "")
    return ~named | pair.holds(close, "latency_s")


@law
def order_of_blocks_in_a_stage_does_not_matter(sample: Sample) -> Mask:
    """Blocks of an FBNet stage behind the first may change places."""

    def reversed_stages(point: dict[str, Any]) -> str:
        if point["search_space"] != "fbnet":
            return str(point["network"])
        layers, starts = point["network"].split(), np.cumsum([0, *FBNET_STAGES]).tolist()
        stages = [layers[a : a + 1] + layers[a + 1 : b][::-1] for a, b in pairwise(starts)]
        return " ".join(block for stage in stages for block in stage)

    return equal_with(sample, reversed_stages)


@law
def blocks_beyond_the_depth_do_not_matter(sample: Sample) -> Mask:
    """Blocks of an OFA stage that its depth leaves out have no effect."""

    def used(key: str, network: dict[str, Any]) -> list[int]:
        depths = np.repeat(network["d"], OFA_DEPTH)
        place = np.tile(np.arange(OFA_DEPTH), OFA_STAGES)
        return np.where(place < depths, network[key], 3).tolist()

    change = partial(changed_ofa, ks=partial(used, "ks"), e=partial(used, "e"))
    return equal_with(sample, lambda p: change(p)["network"])


@law
def more_pixels_are_never_faster(sample: Sample) -> Mask:
    """An OFA network at 224 pixels takes at least as long as at fewer pixels.

    Launches decide the latency of GPUs with one image: their fitted pixels may save up to 2 %.
    """
    change = partial(changed_ofa, r=lambda _: 224)
    pair = sample.changed(network=lambda p: change(p)["network"])
    return pair.holds(partial(at_most, relative=0.02), "latency_s")


@law
def convolution_is_never_faster_than_nothing(sample: Sample) -> Mask:
    """A 3x3 convolution from input to output instead of no operation never lowers the latency."""

    def with_edge(operation: str) -> Sample:
        is_cell = {"nb201": ""}
        network = lambda p: is_cell.get(p["search_space"], p["network"])  # noqa: E731
        return sample.changed(network=network, op_0_3=operation).after

    without, convolved = with_edge("none"), with_edge("nor_conv_3x3")
    found = np.ones(int(sample.feasible.sum()), bool)
    found[: without.feasible.size] = at_most(without["latency_s"], convolved["latency_s"])
    return found


def answered(sample: Sample, change: Any, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return latencies of calibrated devices, and those of files with changed weights."""
    points = sample.points[:200]
    files = {}
    for space, name in {(p["search_space"], p["device"]) for p in points}:
        files[space, name] = folder / f"{space}_{name}.json"
        files[space, name].write_text(text_of(change(device(space, name)), space, {}))
    own = [p | {"device": str(files[p["search_space"], p["device"]])} for p in points]
    before = Sample(SIMULATOR, points)["latency_s"]
    return before, Sample(SIMULATOR, own)["latency_s"]


@pytest.mark.parametrize("factor", [1.0, 2.0, 1e-3])
def test_unit_scales_the_latency(factor: float, tmp_path: Path) -> None:
    """A device file with the weights of a calibrated device gives its latency, times the unit."""

    def change(w: Weights) -> Weights:
        return Weights(factor * w.unit_s, w.mean, w.covariance, w.noise, w.is_log)

    before, after = answered(LAWS.sample(200), change, tmp_path)
    assert close(factor * before, after).all()


@law
def order_of_rows_does_not_matter(sample: Sample) -> Mask:
    """Rows in reverse order have the same bits."""
    back = Sample(SIMULATOR, sample.points[::-1])
    return np.asarray(back["latency_s"][::-1] == sample["latency_s"])


LAWS.add_same_alone()
test_laws_of_edge = LAWS.tests()
