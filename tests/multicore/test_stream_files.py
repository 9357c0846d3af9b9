"""Chips in stream's format: cores, links, the port of DRAM, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from formats.hardware.stream import chip_of_stream
from simulators.core.errors import UserError
from simulators.multicore.chip import BITS, chip_of_file, memory_of, routes

FILES = Path(__file__).parent / "files"
CHIP = FILES / "tpu_like_quad_core.yaml"


def content(**changes: Any) -> dict[str, Any]:
    """Return the content of the shipped chip with some keys changed; None removes a key."""
    table = yaml.safe_load(CHIP.read_text(encoding="utf-8")) | changes
    return {key: value for key, value in table.items() if value is not None}


def test_cores_have_the_sizes_of_their_files_and_the_chip_their_ports() -> None:
    chip = chip_of_file(CHIP)
    assert [core.mac.mesh for core in chip.cores] == [(32, 32)] * 4
    memory = memory_of(chip.cores[0])
    assert (memory.tensor_bytes, memory.weight_bytes, memory.is_shared) == (2**20, 2**20, False)
    assert chip.dram_bytes_per_s * BITS == 64e9  # 64 bits per cycle at 1 GHz
    assert chip.dram_pj_per_bit == 1000 / 64
    assert not chip.has_two_ports


def test_a_transfer_across_the_mesh_takes_two_links_and_one_from_dram_takes_the_port() -> None:
    chip = chip_of_file(CHIP)
    found = routes(chip)
    assert len(chip.links) == 8  # one in each direction
    assert len(found[0, 3]) == 2
    assert found[0, 1] != found[1, 0]
    assert found[chip.dram, 2] == found[2, chip.dram] == (8,)


def test_the_older_mesh_has_the_same_routes_as_its_links() -> None:
    graph = {"type": "2d_mesh", "nb_rows": 2, "nb_cols": 2, "bandwidth": 64, "offchip_core_id": 4}
    gone: dict[str, Any] = dict.fromkeys(("core_connectivity", "offchip_core_id"))
    older = chip_of_stream(content(graph=graph, **gone), CHIP)
    now = chip_of_file(CHIP)
    assert {link.ends for link in older.links} == {link.ends for link in now.links}
    assert {link.bytes_per_s for link in older.links} == {8e9}


def test_a_bus_that_reaches_dram_carries_its_transfers() -> None:
    bus = [{"type": "bus", "cores": [0, 1, 2, 3, 4], "bandwidth": 128, "unit_energy_cost": 32}]
    chip = chip_of_stream(content(core_connectivity=bus), CHIP)
    assert routes(chip)[0, 3] == (0,)
    assert routes(chip)[0, chip.dram] == (0, 1)
    assert chip.links[0].pj_per_bit == 0.25


def test_cores_may_be_accelerators_of_the_catalog() -> None:
    cores = {0: "eyeriss_like", 1: "tpu_like", 2: "./cores/offchip.yaml"}
    link = [{"type": "link", "cores": [0, 1], "bandwidth": 32}]
    chip = chip_of_stream(content(cores=cores, offchip_core_id=2, core_connectivity=link), CHIP)
    assert [core.name for core in chip.cores] == ["eyeriss_like", "tpu_like"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"offchip_core_id": 9}, "offchip_core_id 9 is not one of the cores"),
        ({"cores": {0: "none.yaml", 4: "./cores/offchip.yaml"}}, "no file none.yaml"),
        ({"core_memory_sharing": ["0, 1"]}, "share a memory"),
        ({"topology": "ring"}, "'topology' is not modelled"),
        ({"core_connectivity": [{"cores": [0, 7], "bandwidth": 1}]}, "7 is not one of the cores"),
        ({"core_connectivity": [{"cores": [0, 1], "bandwidth": 0}]}, "not a number above zero"),
        ({"core_connectivity": [{"cores": [0, 1, 2], "bandwidth": 8}]}, "joins two cores"),
    ],
)
def test_what_is_not_modelled_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        chip_of_stream(content(**changes), CHIP)


def test_a_core_without_links_is_refused(tmp_path: Path) -> None:
    chip = content(core_connectivity=[{"cores": [0, 1], "bandwidth": 8}])
    chip["cores"] = {k: str(FILES / v) for k, v in chip["cores"].items()}
    file = tmp_path / "chip.yaml"
    file.write_text(yaml.safe_dump(chip), encoding="utf-8")
    with pytest.raises(UserError, match="no link leads from core 0 to core 2"):
        chip_of_file(file)
