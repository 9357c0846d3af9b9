"""What a GPU-hour, a kilowatt-hour and a gram of CO2 are taken to cost, with the day it was true.

List prices change monthly and are negotiated; they are indicative, and meant to be replaced by a
file of one's own in `catalog/prices/`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulators.catalog.gpu import Gpu
from simulators.catalog.sheet import fill
from simulators.core.errors import UserError
from simulators.core.folder import PRICES, read_toml

DEFAULT = "public_cloud"
J_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Quote:
    """One number, the day it was true and who said so."""

    value: float
    date: str
    source: str


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """Prices of GPU-hours, and what a data centre adds to a joule."""

    name: str
    gpus: Mapping[str, Quote]  # $ per GPU-hour, host and network included
    electricity_usd_per_kwh: Quote
    pue: Quote  # power of the site over power of its computers
    carbon_g_per_kwh: Quote

    def usd_per_gpu_hour(self, gpu: Gpu) -> float:
        """Return the price of one GPU for one hour; a what-if device costs what the real one does.

        Raises:
            UserError: the list has no price for the GPU.

        >>> from simulators.catalog.gpu import load_gpu
        >>> load_prices().usd_per_gpu_hour(load_gpu("h100_sxm"))
        2.99
        """
        name = gpu.measured_as or gpu.name
        if name not in self.gpus:
            raise UserError(
                f"prices '{self.name}' have no price for gpu '{name}'\n"
                f"Priced: {', '.join(sorted(self.gpus))}. To add one, write [gpus.{name}] with "
                f"value, date and source in catalog/prices/{self.name}.toml"
            )
        return self.gpus[name].value

    def carbon_g(self, energy_j: float) -> float:
        """Return the CO2 equivalent of energy drawn by computers, with the site's overhead."""
        return energy_j / J_PER_KWH * self.pue.value * self.carbon_g_per_kwh.value

    def electricity_usd(self, energy_j: float) -> float:
        """Return the cost of energy drawn by computers, with the site's overhead."""
        return energy_j / J_PER_KWH * self.pue.value * self.electricity_usd_per_kwh.value


def load_prices(name: str = DEFAULT) -> PriceList:
    """Return the price list of that name or TOML path.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file lacks a quote, or a quote lacks its value, date or source.
    """
    path = PRICES.find(name)
    return _prices(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _prices(path: Path, _mtime_ns: int) -> PriceList:
    return fill(PriceList, read_toml(path), path, "price list")
