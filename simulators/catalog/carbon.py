"""Carbon of electricity by national grid, and of making a GPU.

Grids are annual means of generation; the hour and the contract of a site differ. Embodied carbon is
that of the GPU's module alone, without host, network and building.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from simulators.catalog.gpu import Gpu
from simulators.catalog.price import J_PER_KWH, load_prices
from simulators.core.errors import UnknownNameError
from simulators.core.folder import read_toml

FILE = Path(__file__).with_suffix(".toml")
YEAR_S = 365.25 * 24 * 3600.0


@dataclass(frozen=True)
class ElectricityGrid:
    """Grams of CO2 equivalent per kWh; None: those of the price list."""

    g_per_kwh: float | None

    def g_per_j(self, prices: str) -> float:
        """Return grams per joule of computers, with the overhead (PUE) of the list's site."""
        listed = load_prices(prices)
        stated = listed.carbon_g_per_kwh.value if self.g_per_kwh is None else self.g_per_kwh
        return stated * listed.pue.value / J_PER_KWH


@functools.cache
def read_grid(text: str) -> ElectricityGrid:
    """Return a grid by the name of a nation, or by grams per kWh; an empty text is the list's grid.

    Raises:
        UnknownNameError: the text is neither.

    >>> read_grid("france").g_per_kwh, read_grid("42.5").g_per_kwh, read_grid("").g_per_kwh
    (56.0, 42.5, None)
    """
    if not text:
        return ElectricityGrid(None)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0.0 <= value < inf:
        return ElectricityGrid(value)
    known = {name: value for name, value in _facts()["grids"].items() if name not in SOURCES}
    if text not in known:
        raise UnknownNameError("grid", text, tuple(known), "Or write grams of CO2e per kWh.")
    return ElectricityGrid(float(known[text]))


SOURCES = ("source", "date")


def carbon_notes(grids: Sequence[str]) -> tuple[str, ...]:
    """Return a footnote with the figure of each named grid, its year and source.

    >>> carbon_notes(["", "france", "12"])[0][:42]
    'Carbon: france 56 g/kWh (2023, Ember, Year'
    """
    known = _facts()["grids"]
    said = [f"{name} {known[name]:g} g/kWh" for name in grids if name in known]
    if not said:
        return ()
    return (f"Carbon: {', '.join(said)} ({known['date']}, {known['source']}).",)


def embodied_kg(gpu: Gpu) -> float | None:
    """Return kilograms of CO2 equivalent of making a GPU; None where no figure is published.

    >>> from simulators.catalog.gpu import load_gpu
    >>> embodied_kg(load_gpu("h100_sxm")), embodied_kg(load_gpu("p4"))
    (164.0, None)
    """
    known = _facts()["embodied"]
    found = known.get(gpu.name) or known.get(gpu.measured_as or gpu.name)
    return None if found is None else float(found["kg"])


def _facts() -> Mapping[str, Any]:
    return read_toml(FILE)
