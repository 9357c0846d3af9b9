"""Recipes of InferenceX as spaces."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from formats.serving_recipes import is_recipe, space_of_recipe
from simulators.core.errors import UnknownNameError, UserError
from sweeper.commands.show import main as show
from sweeper.space.space_file import parse_space

RECIPES = """
dsr1-fp8-b200-sglang:
  image: lmsysorg/sglang:v0.5.9
  model: deepseek-ai/DeepSeek-R1-0528
  model-prefix: dsr1
  runner: b200
  precision: fp8
  framework: sglang
  multinode: false
  seq-len-configs:
  - isl: 1024
    osl: 1024
    search-space:
    - { tp: 8, ep: 1, conc-start: 4, conc-end: 16 }
    - { tp: 8, ep: 8, dp-attn: true, conc-start: 256, conc-end: 256 }
  - isl: 8192
    osl: 1024
    search-space:
    - { tp: 8, conc-start: 4, conc-end: 6 }
    - { tp: 8, conc-start: 4, conc-end: 64, spec-decoding: mtp }
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "nvidia-master.yaml"
    file.write_text(text)
    return file


def test_entry_becomes_a_space_of_its_launches_and_loads(tmp_path: Path) -> None:
    file = written(tmp_path, RECIPES)
    assert is_recipe(file)
    text = space_of_recipe(file, "")
    assert "# Left out: 1 lines with speculative decoding." in text
    space = yaml.safe_load(text)
    assert space["axes"] == {
        "model": "deepseek_v3",
        "gpu": "b200_sxm",
        "scheduler": "sglang",
        "dtype": "fp8_block",
        "arrivals.process": "closed",
        "lengths.spread": 0.2,
    }
    names = ("tp", "ep", "attention_dp", "prompt_tokens", "arrivals.clients", "requests")
    assert [tuple(one[name] for name in names) for one in space["union"]] == [
        (8, 1, 1, 1024, 4, 40),
        (8, 1, 1, 1024, 8, 80),
        (8, 1, 1, 1024, 16, 160),
        (1, 8, 8, 1024, 256, 2560),
        (8, 1, 1, 8192, 4, 40),
        (8, 1, 1, 8192, 6, 60),
    ]
    parse_space(space)  # a space as any other


def test_show_prints_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, RECIPES)
    assert show([str(file), "dsr1-fp8-b200-sglang"]) == 0
    assert len(yaml.safe_load(capsys.readouterr().out)["union"]) == 6


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("multinode: false", "multinode: true", "several nodes or separate pools are not read"),
        ("runner: b200", "runner: tpu", "runner 'tpu' or framework 'sglang' is not in the catalog"),
        (
            "conc-start: 4, conc-end: 16",
            "conc-start: 4, conc-end: 2",
            "not a range of concurrencies",
        ),
        ("ep: 1,", "pp: 2,", "'pp' of a search space is not modelled"),
        ("ep: 1,", "ep: few,", "ep is 'few', not a whole number above zero"),
        ("conc-start: 4, conc-end: 16", "conc-list: [0]", "conc-list is 0, not a whole number"),
        (
            "search-space:\n    - { tp: 8, ep: 1,",
            "search-space: 3\n    x:\n    - {",
            "not a list of search spaces",
        ),
    ],
)
def test_entry_that_is_not_modelled_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in RECIPES
    with pytest.raises(UserError, match=said):
        space_of_recipe(written(tmp_path, RECIPES.replace(old, new)), "")


def test_entries_are_named(tmp_path: Path) -> None:
    two = RECIPES + RECIPES.replace("dsr1-fp8-b200-sglang", "other")
    with pytest.raises(UnknownNameError, match="other"):
        space_of_recipe(written(tmp_path, two), "")
