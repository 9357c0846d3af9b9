"""Certificates state the best design of a space, and are refused when anything differs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from simulators.core.errors import UserError
from sweeper.commands.certify import proved
from sweeper.commands.results import verify
from sweeper.commands.run import RequestedSweep
from sweeper.engines import load_engine
from sweeper.report.certificate import Certificate, checks, read_certificate, rows_at
from sweeper.report.proof_by_bounds import check_bounds
from sweeper.samplers import Goal
from sweeper.samplers._boxes import Cuts, Partition
from sweeper.samplers.bounds import partition_of
from sweeper.space.design_space import DesignSpace
from sweeper.sweep import Sweep
from tests.sweeper.test_bounds import Factory


@dataclass(frozen=True)
class CheapFactory(Factory):
    """A factory whose designs cost less to evaluate than to bound."""

    name: str = "cheap_factory"

    def cost_hint_s(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the time to evaluate each design."""
        return np.full(batch.num_rows, 1e-6)


FACTORY = CheapFactory()


def proof_of(folder: Path, within: float = 0.0) -> Certificate:
    space = DesignSpace.of(FACTORY, size="1..12", speed="1..6", kind=["a", "b"], load=[1, 3])
    sweep = Sweep.of(space, outputs=str(folder / "rows"), where="time_s <= 8")
    return proved(RequestedSweep("factory", sweep, {}), space, "price", within)


def written(folder: Path, certificate: Certificate) -> Path:
    file = folder / "best.json"
    file.write_text(certificate.to_json(), encoding="utf-8")
    return file


def refusal(certificate: Certificate) -> str:
    with pytest.raises(UserError) as caught:
        list(chain(checks(certificate, 50, 0), check_bounds(certificate, 0, 0, workers=0)))
    return str(caught.value)


def test_certificate_names_the_cheapest_design_of_each_load(tmp_path: Path) -> None:
    found = proof_of(tmp_path)
    rows = rows_at(found.space, np.arange(found.space.size))
    for one in found.choices:
        mine = rows.filter((rows["load"] == one.scenario["load"]) & (rows["time_s"] <= 8.0))
        assert one.value == mine["price"].min()
    assert len(found.choices) == 2


def test_choice_within_a_tenth_is_at_most_that_much_dearer(tmp_path: Path) -> None:
    exact = {str(c.scenario): c.value for c in proof_of(tmp_path).choices}
    for one in proof_of(tmp_path, within=0.1).choices:
        best = exact[str(one.scenario)]
        assert one.value is not None
        assert best is not None
        assert best <= one.value <= best / 0.9


def test_certificate_is_verified_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, proof_of(tmp_path))
    assert verify([str(file)]) == 0
    assert "Verified" in capsys.readouterr().out


def test_changed_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, proof_of(tmp_path))
    content = json.loads(file.read_text(encoding="utf-8"))
    content["choices"][0]["value"] *= 0.9
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match="was changed after it was written"):
        read_certificate(file)
    assert verify([str(file)]) == 1
    assert "REFUSED" in capsys.readouterr().out


def test_forged_value_with_a_new_digest_is_refused(tmp_path: Path) -> None:
    found = proof_of(tmp_path)
    first, *rest = found.choices
    forged = dataclasses.replace(first, value=(first.value or 0.0) * 0.9)
    assert "states" in refusal(dataclasses.replace(found, choices=[forged, *rest]))


def test_worse_design_with_its_true_value_is_refused(tmp_path: Path) -> None:
    found = proof_of(tmp_path)
    first, *rest = found.choices
    worse = first.alternatives[-1]
    forged = dataclasses.replace(first, index=worse["index"], value=worse["value"])
    said = refusal(dataclasses.replace(found, choices=[forged, *rest]))
    assert "not excluded" in said or "a better design exists" in said


def leaves_of(found: Certificate) -> tuple[Partition, NDArray[np.int64], NDArray[np.int64]]:
    partition = partition_of(found.space, Goal({"price": "min"}, None, ("load",)))
    return partition, *Cuts.from_dict(found.cuts).leaves(partition)


def test_boxes_of_a_certificate_cover_each_design_once(tmp_path: Path) -> None:
    found = proof_of(tmp_path)
    partition, low, high = leaves_of(found)
    inside = [
        partition.number(np.array(codes)[np.newaxis])[0]
        for first, last in zip(low.tolist(), high.tolist(), strict=True)
        for codes in product(*(range(a, b + 1) for a, b in zip(first, last, strict=True)))
    ]
    assert sorted(inside) == list(range(found.space.size))


def test_cuts_that_do_not_fit_the_space_are_refused(tmp_path: Path) -> None:
    found = proof_of(tmp_path)
    masks = Cuts.from_dict(found.cuts).masks
    for wrong in (masks[:-1], [masks[0], masks[1][:-8]], [~masks[0], *masks[1:]]):
        forged = {"parts": 64, **Cuts(list(wrong)).to_dict()}
        assert "boxes of the certificate" in refusal(dataclasses.replace(found, cuts=forged))


def test_uncut_box_with_a_better_bound_is_refused(tmp_path: Path) -> None:
    found = proof_of(tmp_path)
    none = [np.zeros_like(Cuts.from_dict(found.cuts).masks[0])]
    forged = {"parts": 64, **Cuts(none).to_dict()}
    assert "not excluded" in refusal(dataclasses.replace(found, cuts=forged))


@pytest.mark.slow  # starts worker processes
def test_certificate_is_the_same_with_one_process_and_two(tmp_path: Path) -> None:
    axes = {"gpu": ["h100_sxm", "l40s"], "tp": [1, 2], "max_batch": "1..256"}
    fixed = {"model": "llama3_1_8b", "prompt_tokens": 512, "output_tokens": 64}
    space = DesignSpace.of(
        "serving",
        **axes,
        **fixed,
        dtype=["fp16", "fp8"],
        pp=[1, 2, 4, 8],
        qps=None,
        chunk_size="pow2 128..8192",
        scheduler=["vllm", "sarathi"],
        fidelity="analytic",
    )
    certificates = []
    for number in (0, 2):
        engine = load_engine("process", workers=number) if number else load_engine("inline")
        sweep = Sweep.of(space, outputs=str(tmp_path / str(number)), engine=engine)
        certificates.append(
            proved(RequestedSweep("two", sweep, {}), space, "cost_usd_per_mtok", 0.01)
        )
    one, two = certificates
    assert one.to_json() == two.to_json()
    said = list(check_bounds(two, 20, 1, workers=2))
    assert said == list(check_bounds(one, 20, 1, workers=0))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("version", 7, "version 7 of"),
        ("contents", {"kind": {'"a"': "0123456789abcdef"}}, "facts have changed.*kind a"),
    ],
)
def test_other_versions_and_facts_are_refused(
    key: str, value: Any, said: str, tmp_path: Path
) -> None:
    found = proof_of(tmp_path)
    other = dataclasses.replace(found, definition={**found.definition, key: value})
    with pytest.raises(UserError, match=said):
        list(checks(other, 50, 0))
