"""Results are the same bits whatever seed Python hashes strings with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SPACES = ("quickstart", "gemm_gpus", "vision_gpus", "small_models_training", "llama70b_passes")
DIGESTS = """
import hashlib, sys
from simulators.core.contract import load_simulator
from sweeper.space.design_space import space_of
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import read_space
from tests.golden import evaluated
for name in sys.argv[1:]:
    where, results = evaluated(space_of(read_space(spaces()[name])), 120)
    values = [v.hex() if isinstance(v, float) else v for c in results for v in c.to_list()]
    print(name, len(where), hashlib.sha256(repr(values).encode()).hexdigest())
"""


def digests(seed: int) -> str:
    """Return a digest of every bit of many points of each space, under a seed of hashes."""
    found = subprocess.run(
        [sys.executable, "-c", DIGESTS, *SPACES], cwd=ROOT, check=True, capture_output=True,
        text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)},
    )  # fmt: skip
    return found.stdout


@pytest.mark.slow
def test_results_do_not_change_with_the_seed_of_hashes() -> None:
    first = digests(0)
    assert len(first.splitlines()) == len(SPACES)
    assert digests(1) == first
    assert digests(2) == first
