"""Whose numbers a fused kernel runs by: its framework's on this GPU, else its nearest relative's.

`calibration/fused/<gpu>.toml` holds one entry per framework, kernel and precisions, written by
`fit_fused.py`. A GPU nobody measured borrows from one of its architecture, trees included; across
architectures only the few numbers of the form are lent, since trees know one library's habits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.gpu import Gpu
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE
from simulators.kernels.bending import bend_from
from simulators.kernels.correction import Correction
from simulators.kernels.profile import Profile

FOLDER = PACKAGE / "kernels" / "calibration" / "fused"

FRAMEWORKS = ("vllm", "trtllm", "sglang")
"""Where the framework asked for has no entry, the first of these that has one speaks."""

RELATIVES = {
    "h100_sxm": "h200_sxm",
    "ampere": "a100_sxm", "hopper": "h100_sxm", "blackwell": "b200_sxm",
}  # fmt: skip
"""Who lends to whom: by name where a GPU is itself the usual lender, else by architecture."""

STRANGER = "h100_sxm"
"""Lends its form to every other architecture: the one most kernels were written for."""


@dataclass(frozen=True)
class Entry:
    """The numbers of one kernel, and what they may be called here."""

    framework: str
    numbers: Mapping[str, float]
    bend: Correction | None
    calibrated: bool
    lo: float  # of the 90 % interval, as parts of the time
    hi: float


def entry_of(gpu: Gpu, profile: Profile, kernel: str, dtypes: tuple[str, ...]) -> Entry | None:
    """Return the entry for a kernel on a GPU; none if no table was ever fitted for it.

    Args:
        gpu: where it runs.
        profile: says which framework and which level of information is asked for.
        kernel: prefill, decode, mla_prefill, mla_decode or experts.
        dtypes: precisions, the wanted one first and acceptable ones after it.
    """
    return _entry(
        gpu.measured_as or gpu.name,
        gpu.architecture,
        profile.framework,
        profile.asked == "zero_shot",
        kernel,
        dtypes,
    )


def fused_files() -> tuple[Path, ...]:
    """Return every file an answer about attention or experts may rest on."""
    return tuple(sorted(FOLDER.glob("*.toml")))


@functools.lru_cache(maxsize=512)
def _entry(
    name: str, architecture: str, framework: str, blind: bool, kernel: str, dtypes: tuple[str, ...]
) -> Entry | None:
    """Look at home first, then at a relative, then at a stranger."""
    relative = RELATIVES.get(architecture, "")
    if relative == name:
        relative = RELATIVES.get(name, "")
    order = (framework, *(other for other in FRAMEWORKS if other != framework))
    for lender in (("" if blind else name), relative, STRANGER if name != STRANGER else "h200_sxm"):
        tables = _tables(lender) if lender else {}
        for dtype in dtypes:
            for whose in order:
                found = tables.get(f"{whose}.{kernel}.{dtype}")
                if found is not None:
                    at_home = lender == name
                    kin = at_home or lender == relative
                    return _read(whose, found, at_home and dtype == dtypes[0], trees=kin)
    return None


def _read(whose: str, table: Mapping[str, Any], calibrated: bool, *, trees: bool) -> Entry:
    numbers = {key: float(value) for key, value in table["numbers"].items()}
    bend = bend_from(table["bend"]) if trees and "bend" in table else None
    lo, hi = (float(end) for end in table["band"])
    return Entry(whose, numbers, bend, calibrated, lo, hi)


@functools.lru_cache(maxsize=16)
def _tables(gpu: str) -> Mapping[str, Any]:
    """Return a GPU's entries by name."""
    path: Path = FOLDER / f"{gpu}.toml"
    if not path.is_file():
        return {}
    found: Mapping[str, Any] = read_calibration(path)["entry"]
    return found
