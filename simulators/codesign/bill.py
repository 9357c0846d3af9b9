"""From silicon to the bill: a device of a given area, process and power limit, and USD per token.

Dies are as few as the reticle allows. Good dies per wafer follow the negative binomial yield;
Cunningham, "The use and evaluation of yield models" (1990). Memory ports take their area from
products; the rates of products per mm2 are those of published devices of the process. A device
costs its dies, stacks, package and links, times the vendor's markup, and its share of a server;
tokens pay for it over its years, and for its power. Throughput is that of `codesign.device`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulators.catalog.model import LanguageModel
from simulators.codesign.device import (
    DeviceFactors,
    DeviceSheet,
    FullLoad,
    Steady,
    calibrated,
    steady,
)
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import read_toml

FILE = Path(__file__).with_suffix(".toml")
HOURS_PER_YEAR, SECONDS_PER_HOUR, WATTS_PER_KW = 8766.0, 3600.0, 1e3
MM2_PER_CM2, MTOK, GB = 100.0, 1e6, 1e9

STACKS = (2, 4, 6, 8, 10, 12, 16)
LINKS = (2.25e11, 4.5e11, 9e11, 1.8e12)
DOMAINS = (8, 72)
OBJECTIVES = ("usd_per_mtok", "tokens_per_s", "tokens_per_j")
"""What is minimised (the first) or maximised."""


@dataclass(frozen=True)
class Budget:
    """Limits of a design: process, silicon, power, and kind of memory."""

    process: str
    area_mm2: float
    tdp_w: float
    memory: str = "hbm3e"


@dataclass(frozen=True)
class DesignedDevice:
    """A device, its cost, and its throughput with a 90 % interval."""

    sheet: DeviceSheet
    stacks: int
    dies: int
    yield_share: float
    device_usd: float  # as sold, with its share of a server
    usd_per_hour: float  # device over its years, and power
    steady: Steady
    tokens_per_s: tuple[float, float, float]

    @property
    def usd_per_mtok(self) -> float:
        """USD per million output tokens."""
        return self.usd_per_hour * MTOK / SECONDS_PER_HOUR / self.steady.tokens_per_s

    @property
    def tokens_per_j(self) -> float:
        """Output tokens per joule at the power limit."""
        return self.steady.tokens_per_s / self.sheet.tdp_w


def best_design(
    budget: Budget, model: LanguageModel, load: FullLoad, objective: str = OBJECTIVES[0]
) -> DesignedDevice:
    """Return the best device within a budget, over stacks, links, domains and precisions.

    Raises:
        UnknownNameError: the process, memory or objective is unknown.
        UserError: area or power is not positive.
        Infeasible: no device of the budget serves the load, or no model has such a context.
    """
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    if load.prompt + load.output > model.max_context:
        raise Infeasible(
            "context_exceeds_model",
            f"{load.prompt + load.output:,.0f} tokens, {model.name} has {model.max_context:,}",
        )
    found = list(designs(budget, model, load, calibrated()))
    if not found:
        raise Infeasible("no_design", _why_none(budget, model, load))
    if objective == OBJECTIVES[0]:
        return min(found, key=lambda one: one.usd_per_mtok)
    if objective == "tokens_per_s":
        return max(found, key=lambda one: one.steady.tokens_per_s)
    return max(found, key=lambda one: one.tokens_per_j)


def designs(
    budget: Budget, model: LanguageModel, load: FullLoad, factors: DeviceFactors
) -> Iterator[DesignedDevice]:
    """Yield the devices within a budget that serve the load."""
    table = read_toml(FILE)
    process = _named(table["process"], budget.process, "process")
    memory = _named(table["memory"], budget.memory, "memory")
    for name in ("area_mm2", "tdp_w"):
        if not 0.0 < getattr(budget, name) < math.inf:
            raise UserError(f"{name} is {getattr(budget, name)}; it must be positive")
    dies = math.ceil(budget.area_mm2 / table["reticle_mm2"])
    die_usd, good = die_cost(budget.area_mm2 / dies, process, table)
    for stacks, link, domain in itertools.product(STACKS, LINKS, DOMAINS):
        products_mm2 = budget.area_mm2 - stacks * memory["port_mm2"]
        if products_mm2 <= 0.0 or stacks_w(stacks, memory, table) >= budget.tdp_w:
            continue
        fp8 = products_mm2 * process["fp8_per_mm2"]
        sheet = DeviceSheet(
            name=f"{budget.process}_{budget.area_mm2:g}",
            peak_flops={"fp4": 2.0 * fp8, "fp8": fp8, "fp16": fp8 / 2.0},
            hbm_bytes=stacks * memory["bytes"],
            hbm_bytes_per_s=stacks * memory["bytes_per_s"],
            link_bytes_per_s=link,
            domain=domain,
            tdp_w=budget.tdp_w,
        )
        parts_usd = dies * die_usd + stacks * memory["bytes"] / GB * memory["usd_per_gb"]
        device_usd = device_cost(parts_usd, stacks, link, table["choices"])
        usd_per_hour = hourly_cost(device_usd, budget.tdp_w, table["choices"])
        for dtype in ("fp8", "fp4"):
            try:
                state = steady(sheet, model, load, factors, dtype)
            except Infeasible:
                continue
            rate = state.tokens_per_s
            ends = (rate, *factors.interval(rate))
            yield DesignedDevice(sheet, stacks, dies, good, device_usd, usd_per_hour, state, ends)


def stacks_w(stacks: int, memory: dict[str, Any], table: dict[str, Any]) -> float:
    """Return the watts of stacks at their full rate: a device needs more than its memory alone."""
    return float(8.0 * stacks * memory["bytes_per_s"] * table["stack_j_per_bit"])


def _why_none(budget: Budget, model: LanguageModel, load: FullLoad) -> str:
    """Return the limit of the budget or the load that leaves no device."""
    table, least = read_toml(FILE), STACKS[0]
    memory = table["memory"][budget.memory]
    said = f"no device of {budget.area_mm2:g} mm2 and {budget.tdp_w:g} W serves {model.name}: "
    if budget.area_mm2 <= least * memory["port_mm2"]:
        return f"{said}ports of {least} stacks alone take {least * memory['port_mm2']:g} mm2"
    if budget.tdp_w <= (draw := stacks_w(least, memory, table)):
        return f"{said}{least} stacks of {budget.memory} alone draw {draw:.0f} W at full rate"
    if any(designs(budget, model, replace(load, tpot_s=math.inf), calibrated())):
        return f"{said}no step is as short as {load.tpot_s * 1e3:g} ms"
    return f"{said}it does not fit into the memory of a domain"


def die_cost(mm2: float, process: dict[str, Any], table: dict[str, Any]) -> tuple[float, float]:
    """Return USD of a good die, and the share of good dies.

    Dies per wafer: the wafer's area over the die's, less those that its edge cuts.
    """
    radius, clustering = table["wafer_mm"] / 2.0, table["clustering"]
    dies = math.pi * radius**2 / mm2 - 2.0 * math.pi * radius / math.sqrt(2.0 * mm2)
    defects = process["defects_per_cm2"] * mm2 / MM2_PER_CM2
    good = (1.0 + defects / clustering) ** -clustering
    return process["wafer_usd"] / (dies * good), good


def device_cost(parts_usd: float, stacks: int, link: float, choices: dict[str, float]) -> float:
    """Return USD of a device as sold, with its share of a server."""
    package_usd = choices["package_usd"] + stacks * choices["package_usd_per_stack"]
    links_usd = link / GB * choices["link_usd_per_gb_s"]
    sold_usd = (parts_usd + package_usd + links_usd) * choices["markup"]
    return sold_usd * (1.0 + choices["server_share"])


def hourly_cost(device_usd: float, watts: float, choices: dict[str, float]) -> float:
    """Return USD per busy hour: the device over its years, and its power."""
    hours = choices["years"] * HOURS_PER_YEAR * choices["utilisation"]
    return device_usd / hours + watts / WATTS_PER_KW * choices["usd_per_kwh"]


def _named(table: dict[str, Any], name: str, kind: str) -> dict[str, Any]:
    if name not in table:
        raise UnknownNameError(kind, name, tuple(table))
    found: dict[str, Any] = table[name]
    return found
