"""Price lists: GPU-hours, electricity and CO2, each with date and source.

List prices change monthly and are negotiable, so the shipped lists are indicative. Users replace
them by their own file in `catalog/prices/`, or state prices behind the name of a list:
`public_cloud:rtx_5090=0.5+h100_sxm=2.1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.sheet import fill
from simulators.core.errors import UserError
from simulators.core.fields import ValueRule
from simulators.core.folder import PRICES, read_toml

DEFAULT = "public_cloud"
J_PER_KWH = 3.6e6
HOURS_PER_YEAR = 8766.0

MONTHS_NEW = 12
"""Age from which a price says how old it is."""
STATED = "stated with the question"

Amount = TypeVar("Amount", float, NDArray[np.float64])
"""A number or a column of numbers."""


@dataclass(frozen=True, kw_only=True)
class Quote:
    """A quoted number, with its date and source."""

    value: float
    date: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Purchase costs of nodes and network, and their depreciation."""

    nodes: Mapping[str, Quote]  # $ per node, by GPU
    network_usd_per_gpu: Quote  # switches, cables and their share of the data centre
    years: Quote  # of depreciation
    used_share: Quote  # working hours over all hours
    power_share: Quote  # mean power over the maximum


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """Prices of GPU-hours, rented or owned, and of electricity and CO2 in a data centre."""

    name: str
    gpus: Mapping[str, Quote]  # $ per GPU-hour, host and network included
    electricity_usd_per_kwh: Quote
    pue: Quote  # power of the site over power of its computers
    carbon_g_per_kwh: Quote
    ownership: Ownership | None = None  # for GPUs without a rental price

    def quote(self, gpu: Gpu) -> Quote | None:
        """Return the quote for a GPU, or None."""
        name = self._listed(gpu)
        owned = self.ownership.nodes if self.ownership else {}
        return self.gpus.get(name) or owned.get(name)

    def _listed(self, gpu: Gpu) -> str:
        return gpu.name if gpu.name in self._priced() else gpu.measured_as or gpu.name

    def unused(self, gpus: Sequence[str]) -> list[str]:
        """Return the GPUs whose price was stated behind the list's name, but is not that of `gpus`.

        >>> load_prices("public_cloud:l4=0.5+h100=2").unused(["h100_sxm"])
        ['l4']
        """
        used = {self._listed(load_gpu(name)) for name in gpus}
        return [
            gpu for gpu, quote in self.gpus.items() if quote.source == STATED and gpu not in used
        ]

    def usd_per_gpu_hour(self, gpu: Gpu) -> float:
        """Return USD per GPU-hour. A what-if GPU costs as much as its base GPU.

        The cost of an owned GPU is its share of node and network over the working hours, plus the
        electricity of the GPU and its share of the host.

        Raises:
            UserError: the list has no price for the GPU.

        >>> from simulators.catalog.gpu import load_gpu
        >>> load_prices().usd_per_gpu_hour(load_gpu("h100_sxm"))
        3.99
        >>> round(load_prices("owned").usd_per_gpu_hour(load_gpu("h100_sxm")), 2)
        1.67
        """
        name = self._listed(gpu)
        if self.ownership and name not in self.gpus and name in self.ownership.nodes:
            return self._owned_usd_per_hour(self.ownership, gpu, name)
        if name not in self.gpus:
            raise UserError(
                f"prices '{self.name}' have no price for gpu '{name}'\n"
                f"Priced: {', '.join(self._priced())}. To add one, write [gpus.{name}] with "
                f"value, date and source in catalog/prices/{self.name}.toml"
            )
        return self.gpus[name].value

    def _owned_usd_per_hour(self, owned: Ownership, gpu: Gpu, name: str) -> float:
        cluster = cluster_for("auto", gpu)
        capital = owned.nodes[name].value / cluster.gpus_per_node + owned.network_usd_per_gpu.value
        hours = owned.years.value * HOURS_PER_YEAR * owned.used_share.value
        highest_w = gpu.tdp_w + cluster.host_w / cluster.gpus_per_node
        hour_j = highest_w * owned.power_share.value * 3600
        return capital / hours + self.electricity_usd(hour_j) / owned.used_share.value

    def _priced(self) -> list[str]:
        return sorted({*self.gpus, *(self.ownership.nodes if self.ownership else ())})

    def carbon_g(self, energy_j: Amount) -> Amount:
        """Return grams of CO2 equivalent for joules of computers, with the site's overhead."""
        return energy_j / J_PER_KWH * self.pue.value * self.carbon_g_per_kwh.value

    def electricity_usd(self, energy_j: float) -> float:
        """Return the USD of electricity for joules of computers, with the site's overhead."""
        return energy_j / J_PER_KWH * self.pue.value * self.electricity_usd_per_kwh.value


def load_prices(name: str = DEFAULT) -> PriceList:
    """Return a price list by name or TOML path, with prices of GPUs that stand behind the name.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a quote, or a quote lacks value, date or source, or is out of its
            bounds; or a stated price is no number.

    >>> load_prices("public_cloud:RTX 5090=0.5+l40s=$0.8").gpus["rtx_5090"].value
    0.5
    """
    listed, (_, options) = PRICES.load(name, _prices), PRICES.parted(name)
    own = {}
    for word in filter(None, options[1:].split("+")):
        gpu, _, usd = word.partition("=")
        try:
            value = float(usd.strip().removeprefix("$"))
        except ValueError:
            value = -1.0
        if not 0.0 <= value < inf:
            raise UserError(f"price '{word}': write dollars per hour of a GPU, as in {gpu}=2.5")
        own[load_gpu(gpu).name] = Quote(value=value, date="", source=STATED)
    return replace(listed, gpus={**listed.gpus, **own}) if own else listed


def usd_per_gpu_hours(
    gpus: Sequence[str], prices: str, override: float | None = None
) -> NDArray[np.float64]:
    """Return USD per hour of each GPU by a price list, or `override`; NaN without a price.

    >>> usd_per_gpu_hours(["h100_sxm", "p4"], "owned").round(2).tolist()
    [1.67, nan]
    """
    if override is not None:
        return np.full(len(gpus), override)
    known = load_prices(prices)
    sheets = [load_gpu(name) for name in gpus]
    return np.array([known.usd_per_gpu_hour(s) if known.quote(s) else np.nan for s in sheets])


def with_rates(prices: str, rates: Mapping[str, float]) -> str:
    """Return the name of a price list in which GPUs have other prices.

    >>> with_rates("public_cloud:l4=0.5", {"h100_sxm": 2.5, "l4": 0.25})
    'public_cloud:l4=0.25+h100_sxm=2.5'
    """
    name, _, options = prices.partition(":")
    known = dict(word.split("=", 1) for word in filter(None, options.split("+")))
    known |= {gpu: repr(usd) for gpu, usd in rates.items()}
    return f"{name}:{'+'.join(f'{gpu}={usd}' for gpu, usd in known.items())}"


def usd_per_mtok(usd_per_gpu_hour: Amount, gpus: Amount, tokens_per_s: Amount) -> Amount:
    """Return USD per million tokens of `gpus` GPUs that generate `tokens_per_s` in total."""
    return usd_per_gpu_hour * gpus / 3600.0 / tokens_per_s * 1e6


def priced_by(lists: Sequence[str], gpus: Sequence[str]) -> tuple[str, ...]:
    """Return footnotes with the price of each GPU in each price list, with date and source.

    >>> priced_by(["public_cloud"], ["h100_sxm"])
    ('Prices: public_cloud, h100_sxm $3.99 an hour (2026-11, RunPod secure cloud, H100 SXM).',)
    """
    notes = []
    for name in lists:
        prices = load_prices(name)
        quotes = [(gpu, prices.quote(gpu)) for gpu in map(load_gpu, gpus)]
        said = [
            f"{gpu.name} ${prices.usd_per_gpu_hour(gpu):.2f} an hour ({_dated(quote)})"
            for gpu, quote in quotes
            if quote
        ]
        if said:
            notes.append(f"Prices: {prices.name}, {'; '.join(said)}.")
        if unused := prices.unused(gpus):
            notes.append(f"No effect: the price of {', '.join(unused)}, which no design has.")
        if unpriced := [gpu.name for gpu, quote in quotes if not quote]:
            notes.append(
                f"No price: {prices.name} has none for {', '.join(unpriced)}; give one, as in "
                f"--price {unpriced[0]}=0.5 or prices={prices.name}:{unpriced[0]}=0.5"
            )
    return tuple(notes)


def _dated(quote: Quote) -> str:
    age = months_since(quote.date, date.today())
    aged = f"{age} months old" if age > MONTHS_NEW else ""
    return ", ".join(filter(None, (quote.date, aged, quote.source)))


def months_since(day: str, today: date) -> int:
    """Return the months from a date such as 2025-06 or 2025 to today; 0 for an empty date.

    >>> months_since("2025-06", date(2026, 11, 28)), months_since("2024", date(2026, 11, 28))
    (17, 23)
    """
    year, _, month = day.partition("-")
    return 12 * (today.year - int(year)) + today.month - int(month[:2] or 12) if year else 0


SHARE = ValueRule(above=0.0, at_most=1.0)
RULES = {
    "pue": ValueRule(at_least=1.0),
    "ownership.years": ValueRule(above=0.0),
    "ownership.used_share": SHARE,
    "ownership.power_share": SHARE,
}
"""Rules of quotes beyond that a quote is not negative."""


def _prices(path: Path) -> PriceList:
    prices = fill(PriceList, read_toml(path), path, "price list")
    for name, rule in RULES.items():
        if prices.ownership or "." not in name:
            quote: Quote = attrgetter(name)(prices)
            if wrong := rule.broken_by(name, quote.value):
                raise UserError(f"{path}: {wrong}")
    return prices
