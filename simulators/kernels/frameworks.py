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
from simulators.kernels.interpolation_grid import Knots, knots_from
from simulators.kernels.intervals import LEAST_KNOWN, Band, band_from, stretched
from simulators.kernels.monotone_correction import Correction, bend_from
from simulators.kernels.profile import Profile

FOLDER = PACKAGE / "kernels" / "calibration" / "fused"
SIDE_FOLDER = FOLDER.with_name("side")
"""Of the small kernels in `side.py`, fitted by themselves."""

DEFAULT_FRAMEWORK = "trtllm"
"""Whose kernels run, in every family, unless a caller names another's."""

FRAMEWORKS = (
    DEFAULT_FRAMEWORK, "vllm", "sglang", "flashinfer", "flash_attention", "frontier", "pytorch",
)  # fmt: skip
"""Where the framework asked for has no entry, the first of these that has one speaks."""

RELATIVES = {
    "h100_sxm": "h200_sxm",
    "ampere": "a100_sxm", "hopper": "h100_sxm", "blackwell": "b200_sxm",
    "ampere_ga10x": "rtx_pro_6000", "ada": "rtx_pro_6000", "blackwell_rtx": "rtx_pro_6000",
}  # fmt: skip
"""Who lends to whom: by name where a GPU is itself the usual lender, else by architecture."""

STRANGER = "h100_sxm"
"""Lends its form to every other architecture: the one most kernels were written for."""

KIN, STRANGE = 2.0, 3.0
"""Powers that widen the interval of a relative's numbers, and of a stranger's."""

ONE_LAUNCH = "mixed"
"""A kernel that only some libraries have: nobody stands in for another's."""


@dataclass(frozen=True)
class Entry:
    """The numbers of one kernel, and what they may be called here."""

    framework: str
    numbers: Mapping[str, float]
    bend: Correction | None
    knots: Knots | None
    band: Band  # of the 90 % interval
    lender: str  # the GPU that was measured
    calibrated: bool  # measured on this GPU, in this precision


def entry_of(gpu: Gpu, profile: Profile, kernel: str, dtypes: tuple[str, ...]) -> Entry | None:
    """Return the entry for a kernel on a GPU; none if no table was ever fitted for it.

    Args:
        gpu: where it runs.
        profile: says which framework and which level of information is asked for.
        kernel: prefill, decode, mixed, mla_prefill, mla_decode or experts.
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
    """Return every file an answer about fused or side kernels may rest on."""
    return tuple(sorted([*FOLDER.glob("*.toml"), *SIDE_FOLDER.glob("*.toml")]))


@functools.lru_cache(maxsize=512)
def _entry(
    name: str, architecture: str, framework: str, blind: bool, kernel: str, dtypes: tuple[str, ...]
) -> Entry | None:
    """Look at home first, then at a relative, then at a stranger."""
    relative = RELATIVES.get(architecture, "")
    if relative == name:
        relative = RELATIVES.get(name, "")
    order = (framework, *(other for other in FRAMEWORKS if other != framework))
    lenders = ["" if blind else name, relative, STRANGER if name != STRANGER else "h200_sxm"]
    if kernel == ONE_LAUNCH:
        order, lenders = order[:1], lenders[:2]
    for lender in lenders:
        tables = _tables(lender) if lender else {}
        for dtype in dtypes:
            for whose in order:
                found = tables.get(f"{whose}.{kernel}.{dtype}")
                if found is not None:
                    at_home = lender == name and dtype == dtypes[0]
                    power = 1.0 if at_home else KIN if lender in (name, relative) else STRANGE
                    return _read(whose, lender, found, power)
    return None


def _read(whose: str, lender: str, table: Mapping[str, Any], power: float) -> Entry:
    """Return an entry as it is known here: the farther from home, the less of it and the wider."""
    kin = power < STRANGE
    band = band_from(table["band"])
    return Entry(
        framework=whose,
        numbers={key: float(value) for key, value in table["numbers"].items()},
        bend=bend_from(table["bend"]) if kin and "bend" in table else None,
        knots=knots_from(table["knots"]) if kin and "knots" in table else None,
        band=band if power == 1.0 else stretched(band, power, LEAST_KNOWN),
        lender=lender,
        calibrated=power == 1.0,
    )


@functools.lru_cache(maxsize=16)
def _tables(gpu: str) -> Mapping[str, Any]:
    """Return a GPU's entries by name."""
    found: dict[str, Any] = {}
    for folder in (FOLDER, SIDE_FOLDER):
        if (path := folder / f"{gpu}.toml").is_file():
            found |= read_calibration(path)["entry"]
    return found
