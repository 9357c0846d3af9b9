"""Edge devices fitted from a few samples: general laws, and cases with a known answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lab.fits.edge import learn, learn_programs, one_hot
from planning.calibrate.edge import adapt, prior, text_of
from simulators.core.errors import UnknownNameError, UserError
from simulators.edge.simulator import cell_operations, cell_text, device, features

FILES = Path(__file__).parent / "files"
STORED = FILES / "pi_of_format_1.json"
DRAW = np.random.default_rng(0)
NETWORKS = DRAW.integers(0, 6, (60, 3)).astype(np.float64)
COSTS = np.array([[1.0, 2.0, 5.0], [1.2, 2.1, 4.0], [0.8, 2.5, 6.0], [1.1, 1.7, 4.5]])


STORED_SECONDS = [0.09646681497396455, 0.004061002216791592]
"""What the stored device answered when it was stored: all convolutions, and none."""


def seconds(costs: np.ndarray) -> np.ndarray:
    return np.asarray(1e-3 * (3.0 + NETWORKS @ costs))


def test_additive_device_is_recovered_from_a_few_samples() -> None:
    known = learn(NETWORKS, [seconds(c) for c in COSTS], list("abcd"), own=0.05)
    true = seconds(np.array([1.0, 3.0, 4.0]))
    said, low, high = adapt(known, NETWORKS[:8], true[:8]).seconds(NETWORKS)
    assert_allclose(said, true, rtol=0.03)
    assert (low <= said).all()
    assert (said <= high).all()


def test_more_samples_narrow_the_interval() -> None:
    known = learn(NETWORKS, [seconds(c) for c in COSTS], list("abcd"), own=0.05)
    widths = []
    for count in (2, 8, 40):
        _, low, high = adapt(known, NETWORKS[:count], seconds(COSTS[0])[:count]).seconds(NETWORKS)
        widths.append(float(np.mean(high / low)))
    assert widths == sorted(widths, reverse=True)


def test_identical_devices_count_once() -> None:
    plain = learn(NETWORKS, [seconds(c) for c in COSTS[:2]], ["a", "b"], own=0.0)
    twins = learn(NETWORKS, [seconds(c) for c in COSTS[[0, 0, 1]]], ["a", "a", "b"], own=0.0)
    assert_allclose(twins.mean, plain.mean)
    assert_allclose(twins.covariance, plain.covariance)


def test_sample_latencies_must_be_positive() -> None:
    with pytest.raises(UserError, match="above zero"):
        adapt(prior("nb201"), features("nb201", [cell_text(["none"] * 6)]), np.array([0.0]))


def test_dead_end_path_is_pruned() -> None:
    text = cell_text(["nor_conv_3x3", *["none"] * 4, "nor_conv_1x1"])
    assert features("nb201", [text])[0].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    assert cell_operations(text)[5] == "nor_conv_1x1"


@pytest.mark.parametrize(("space", "text"), [("nb201", "|x~0|"), ("fbnet", "k3_e1"), ("ofa", "{}")])
def test_malformed_network_is_refused(space: str, text: str) -> None:
    with pytest.raises(UserError, match="is no"):
        features(space, [text])


def test_stored_device_predicts_the_same_after_reading() -> None:
    cell = features("nb201", [cell_text(["nor_conv_3x3"] * 6), cell_text(["skip_connect"] * 6)])
    said, low, high = device("nb201", str(STORED)).seconds(cell)
    assert_allclose(said, STORED_SECONDS, rtol=1e-9)
    assert (low < said).all()
    assert (said < high).all()


def test_format_1_device_keeps_predictions() -> None:
    stored = [
        [0.007233298666983519, 0.012174694417061292],
        [0.005523051110939405, 0.008113228593944817],
        [0.008943546223027631, 0.016236160240177766],
    ]
    least, most = (
        {"ks": [k] * 20, "e": [e] * 20, "d": [d] * 5, "r": 224}
        for k, e, d in ((3, 3, 2), (7, 6, 4))
    )
    rows = features("ofa", [json.dumps(least), json.dumps(most)])
    said = device("ofa", str(FILES / "v100_of_format_1.json")).seconds(rows)
    assert_allclose(said, stored, rtol=1e-12)


def test_residual_sums_end_in_the_projection() -> None:
    blocks = ["skip"] * 22
    none = features("fbnet", [" ".join(blocks)])[0]
    blocks[1] = "k3_e1"  # narrows its input: nothing is added to it
    first = features("fbnet", [" ".join(blocks)])[0]
    blocks[2] = "k3_e1"
    second = features("fbnet", [" ".join(blocks)])[0]
    assert (first - none)[-5:].tolist() == [0, 0, 0, 0, 0]
    assert (second - first)[-5:].tolist() == [1, 0, 0, 0, 0]


def test_first_expansion_of_a_stage_uses_the_previous_resolution() -> None:
    wide = {"ks": [3] * 20, "e": [6, 3, 3, 3] * 5, "d": [2] * 5, "r": 168}
    assert features("ofa", [json.dumps(wide)])[0][-5:].tolist() == pytest.approx(
        [6 * (168 / 224) ** 2] * 5
    )


def test_written_device_equals_read_device(tmp_path: Path) -> None:
    file = tmp_path / "again.json"
    file.write_text(text_of(device("nb201", str(STORED)), "nb201", {"rows": 10}))
    cell = features("nb201", [cell_text(["nor_conv_1x1"] * 6)])
    for a, b in zip(
        device("nb201", str(file)).seconds(cell),
        device("nb201", str(STORED)).seconds(cell),
        strict=True,
    ):
        assert a.tolist() == b.tolist()


def test_device_of_another_search_space_or_newer_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not of fbnet"):
        device("fbnet", str(STORED))
    newer = tmp_path / "newer.json"
    newer.write_text(STORED.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(UserError, match="format 9"):
        device("nb201", str(newer))
    with pytest.raises(UnknownNameError, match="pixel2"):
        device("nb201", "pixel22")


def test_compilers_of_a_chip_share_related_devices() -> None:
    level, base = np.log([1.0, 2.0, 4.0]), np.log([1.0, 10.0, 100.0, 1000.0])
    log_s = base + level[:, None]
    log_s[2, 3] = np.nan
    known = learn_programs(log_s, np.ones(3))
    said, _, _ = adapt(known, one_hot([0], 4), np.array([3.0])).seconds(one_hot([3], 4))
    assert said[0] == pytest.approx(3000.0, rel=0.05)
