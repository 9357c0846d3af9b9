"""The dataflow simulator, its input files, and errors for invalid ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from simulators.catalog.accelerator import ACCELERATORS, Changes, load_accelerator, resized
from simulators.core.columns import schema_of
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.dataflow.evaluation import area_mm2, machine_of
from simulators.dataflow.mapping import layers_of, network, network_names, read_mapping
from simulators.dataflow.network import ENTRY, OUTSIDE, network_graph
from simulators.dataflow.search.map_space import SPREAD
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, simulate
from tests.contracts import check_simulator

FC = {"network": "resnet50", "layer": "fc", "evaluations": 2000}


def test_simulator_fulfils_the_contract() -> None:
    points = [
        DataflowPoint(accelerator=name, **FC) for name in ("eyeriss_like", "two_level", "tpu_like")
    ]
    points.append(DataflowPoint("two_level", buffer_scale=1e-9, **FC))
    schema = schema_of(DataflowPoint)
    rows = [dataclasses.asdict(point) for point in points]
    check_simulator(SIMULATOR, pa.RecordBatch.from_pylist(rows, schema=schema))


@pytest.mark.parametrize("name", ACCELERATORS.names())
def test_every_accelerator_maps_every_layer_type(name: str) -> None:
    for net, layer in (("mobilenet", "dw3"), ("bert_base_128", "scores"), ("vgg16", "conv3")):
        found = simulate(DataflowPoint(name, network=net, layer=layer, evaluations=500))
        assert found.energy_j >= found.energy_bound_j * (1 - 1e-12)
        assert found.latency_s >= found.latency_bound_s * (1 - 1e-12)
        assert 0 < found.utilization <= 1


@pytest.mark.parametrize(
    ("name", "gigamacs"), [("resnet50", 4.09), ("vgg16", 15.47), ("mobilenet", 0.57)]
)
def test_network_macs_match_published_counts(name: str, gigamacs: float) -> None:
    assert sum(layer.macs * times for layer, times in network(name)) / 1e9 == pytest.approx(
        gigamacs, rel=0.01
    )


def test_network_is_the_sum_of_layers() -> None:
    whole = simulate(
        DataflowPoint("two_level", network="bert_base_128", evaluations=300, residency="layer")
    )
    parts = [
        (
            times,
            simulate(
                DataflowPoint(
                    "two_level", network="bert_base_128", layer=layer.name, evaluations=300
                )
            ),
        )
        for layer, times in layers_of("bert_base_128", "all")
    ]
    assert whole.cycles == sum(times * part.cycles for times, part in parts)
    assert whole.energy_j == pytest.approx(sum(times * part.energy_j for times, part in parts))


@pytest.mark.parametrize("dataflow", SPREAD)
def test_named_dataflow_is_never_better_than_free_dataflow(dataflow: str) -> None:
    point = {"network": "resnet50", "layer": "conv3_2_3x3", "evaluations": 60_000}
    free = simulate(DataflowPoint("eyeriss_like", **point))
    tied = simulate(DataflowPoint("eyeriss_like", dataflow=dataflow, **point))
    assert tied.edp_js >= free.edp_js * 0.99


def test_more_processing_elements_cost_area_and_save_time() -> None:
    point = {"network": "resnet50", "layer": "conv3_2_3x3", "evaluations": 20_000}
    few = simulate(DataflowPoint("eyeriss_like", pe_rows=8, pe_cols=8, **point))
    many = simulate(DataflowPoint("eyeriss_like", pe_rows=16, pe_cols=16, **point))
    assert many.area_mm2 > few.area_mm2
    assert many.latency_s < few.latency_s


def test_lower_memory_energy_lowers_network_energy() -> None:
    lpddr, hbm = (
        simulate(DataflowPoint("two_level", dram_type=kind, **FC)) for kind in ("lpddr4", "hbm2")
    )
    assert hbm.energy_j < lpddr.energy_j


def test_stated_energies_scale_with_resized_memories() -> None:
    base = load_accelerator("eyeriss_like")
    assert (machine_of(resized(base, Changes())).energy_pj == machine_of(base).energy_pj).all()
    larger = machine_of(resized(base, Changes(spad_scale=2.0))).energy_pj
    assert (larger[2:5, 0] > machine_of(base).energy_pj[2:5, 0]).all()
    older = machine_of(resized(base, Changes(node_nm=45.0))).energy_pj
    assert older[1, 0] == pytest.approx(32.3778, rel=1e-3)  # Accelergy's own at 45 nm
    assert area_mm2(resized(base, Changes(node_nm=16.0))) < area_mm2(base)


def test_too_small_buffer_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="buffer_too_small"):
        simulate(DataflowPoint("two_level", buffer_scale=1e-9, **FC))


def test_custom_network_file_is_part_of_the_point_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "catalog" / "layers" / "mine.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        'layers = [{ name = "a", matmul = { n = 1, c = 8, m = 4 } },\n'
        '          { name = "b", matmul = { n = 1, c = 4, m = 2 } }]\nblocks = 2\n'
    )
    monkeypatch.chdir(tmp_path)
    assert [(layer.name, times) for layer, times in network("mine")] == [("a", 2), ("b", 2)]
    assert [node.reads for node in network_graph("mine").nodes] == [
        (ENTRY,),
        (0,),
        (OUTSIDE,),
        (2,),
    ]
    assert [path.name for path in SIMULATOR.reads("network", "mine")] == ["mine.toml"]
    assert SIMULATOR.reads("network", "resnet50") == ()
    file.write_text('layers = [{ name = "a", gemm = { n = 1 } }]\n')
    with pytest.raises(UserError, match="needs one of conv"):
        network("mine")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accelerator": "eyeris_like"}, "did you mean 'eyeriss_like'"),
        ({"network": "resnet5"}, "did you mean 'resnet50'"),
        ({"layer": "conv9"}, "unknown layer of resnet50"),
        ({"dataflow": "row_stationery"}, "did you mean 'row_stationary'"),
        ({"dram_type": "lpddr3"}, "did you mean 'lpddr4'"),
        ({"goal": "energie"}, "did you mean 'energy'"),
        ({"evaluations": 0}, "evaluations is 0"),
        ({"buffer_scale": -1.0}, "buffer_scale is -1"),
        ({"pe_rows": -1}, "must not be negative"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_unknown_option_gets_a_suggestion(change: dict[str, object], said: str) -> None:
    point = {"accelerator": "eyeriss_like", **FC, **change}
    with pytest.raises((UserError, UnknownNameError), match=said):
        simulate(DataflowPoint(**point))  # type: ignore[arg-type]


GOOD = """source = "made up"
[[levels]]
name = "DRAM"
kind = "dram"
width_bits = 64
word_bits = 8
[[levels]]
name = "buffer"
width_bits = 64
word_bits = 8
depth = 1024
[mac]
mesh = [4, 4]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("depth = 1024", "", "needs a depth"),
        ("depth = 1024", "depth = -1", "must be above 0"),
        ("depth = 1024", "dept = 1024", "did you mean 'depth'"),
        ("depth = 1024", "depth = 1024\nmesh = [3, 1]", "no multiple"),
        ("depth = 1024", "depth = 1024\nmay_keep = [['Weight']]", "may keep 'Weight'"),
        ("depth = 1024", "depth = 1024\nenergy_pj = { read = 1.0 }", "lacks write, update"),
        ('kind = "dram"', 'kind = "dran"', "kind is 'dran'"),
        ('name = "buffer"', 'name = "DRAM"', "two levels have one name"),
        ("[[levels]]", "[[level]]", "did you mean 'levels'"),
        ("[mac]", "[mac", "not valid TOML"),
        ("[mac]\nmesh = [4, 4]", "", "also needs mac"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    assert load_accelerator(str(file)).name == "mine"
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(UserError, match=said):
        simulate(DataflowPoint(str(file), **FC))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"level": "DRAM", "tempral": []}, "did you mean 'temporal'"),
        ({"level": "DRAM", "temporal": [["P"]]}, "not a loop"),
        ({"temporal": []}, "needs its name"),
    ],
)
def test_invalid_mapping_names_the_error(table: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_mapping([table])


def test_every_network_has_layers() -> None:
    assert len(network_names()) >= 6
    assert all(times > 0 for name in network_names() for _, times in network(name))
