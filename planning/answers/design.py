"""Answer `ask design`: the best device of a budget of silicon and power for a load.

sweeper ask design --model llama3_1_70b --process n3 --area 1600mm2 --tdp 1800W
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from planning.flags.design import DesignFlags
from simulators.catalog.model import load_model
from simulators.codesign.bill import Budget, DesignedDevice, best_design
from simulators.codesign.device import FullLoad
from simulators.core.errors import UserError
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.demand.workloads import load_workload
from sweeper.text import counted

DRAWS = 4096
"""Requests drawn from a workload for its mean lengths."""


def answer(flags: DesignFlags) -> tuple[list[str], Mapping[str, Any]]:
    """Return the answer as lines and as a mapping for JSON.

    Raises:
        UserError: a flag is invalid.
        Infeasible: no device of the budget serves the load.
    """
    budget = Budget(
        flags.process,
        amount(flags.area, "mm2", "--area"),
        amount(flags.tdp, "W", "--tdp"),
        flags.memory,
    )
    load, model = load_of(flags), load_model(flags.model)
    found = best_design(budget, model, load, flags.objective)
    return _lines(found, budget, flags, load), _values(found, load)


def load_of(flags: DesignFlags) -> FullLoad:
    """Return the stated lengths, or the mean lengths of a workload."""
    if not 0.0 <= flags.hit < 1.0:
        raise UserError(f"--hit {flags.hit:g}: write a share from 0 to below 1")
    if (flags.isl > 0.0) != (flags.osl > 0.0):
        raise UserError("--isl and --osl belong together: write both, or neither")
    if flags.isl > 0.0:
        return FullLoad(flags.isl, flags.osl, flags.hit, flags.tpot)
    if has_sessions(flags.workload):
        raise UserError(
            f"--workload {flags.workload}: sessions have no mean request; write --isl, --osl and "
            "--hit, as in --isl 30000 --osl 600 --hit 0.95"
        )
    uniforms = np.random.default_rng(0).random((DRAWS, 2))
    prompt, output = load_workload(flags.workload).draw(uniforms)
    return FullLoad(float(prompt.mean()), float(output.mean()), flags.hit, flags.tpot)


def amount(text: str, unit: str, name: str) -> float:
    """Return a number that may end in its unit.

    Raises:
        UserError: the text is no positive number, or has another unit.

    >>> amount("1600mm2", "mm2", "--area"), amount("1800", "W", "--tdp")
    (1600.0, 1800.0)
    """
    found = re.fullmatch(rf"\s*([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)\s*(?:{unit})?\s*", text, re.I)
    if found is None or not float(found[1]) > 0.0:
        raise UserError(f"{name} {text}: write a number above zero, as in 1600{unit}")
    return float(found[1])


def _lines(found: DesignedDevice, budget: Budget, flags: DesignFlags, load: FullLoad) -> list[str]:
    rate, low, high = found.tokens_per_s
    usd = (found.usd_per_mtok, found.usd_per_mtok * rate / high, found.usd_per_mtok * rate / low)
    sheet, state = found.sheet, found.steady
    dtype = state.dtype
    return [
        f"Which device of {budget.area_mm2:g} mm2 in {budget.process} and {budget.tdp_w:g} W "
        f"serves {flags.model} best? By {flags.objective}.",
        f"Requests of {load.prompt:.0f} and {load.output:.0f} tokens, {load.hit:.0%} of the prompt "
        f"cached, at most {load.tpot_s * 1e3:g} ms per token.",
        "",
        f"{counted(found.dies, 'die')} (yield {found.yield_share:.0%}), {found.stacks} stacks of "
        f"{budget.memory}: {sheet.hbm_bytes / 1e9:.0f} GB, "
        f"{sheet.hbm_bytes_per_s / 1e12:.1f} TB/s",
        f"{sheet.peak_flops[dtype] / 1e15:.1f} PFLOPS {dtype}, links of "
        f"{sheet.link_bytes_per_s / 1e9:.0f} GB/s in a domain of {sheet.domain}",
        f"{counted(state.devices, 'device')} a replica ({state.cut}), {state.sequences:.0f} "
        f"sequences each, step {state.step_s * 1e3:.1f} ms",
        f"{rate:,.0f} tokens/s a device ({low:,.0f} to {high:,.0f}), "
        f"{found.tokens_per_j:.3g} tokens/J",
        f"${found.device_usd:,.0f} a device with its share of a server, "
        f"${found.usd_per_hour:.2f} per busy hour",
        f"${usd[0]:.3g} per million tokens (${usd[1]:.3g} to ${usd[2]:.3g})",
        "",
        "Intervals (90 %) are those of throughput. Wafer prices are published; prices of memory "
        "and package, markup and use are estimates of simulators/codesign/bill.toml.",
    ]


def _values(found: DesignedDevice, load: FullLoad) -> dict[str, Any]:
    rate, low, high = found.tokens_per_s
    sheet, state = found.sheet, found.steady
    return {
        "prompt": load.prompt,
        "output": load.output,
        "dies": found.dies,
        "yield": found.yield_share,
        "stacks": found.stacks,
        "hbm_bytes": sheet.hbm_bytes,
        "hbm_bytes_per_s": sheet.hbm_bytes_per_s,
        "link_bytes_per_s": sheet.link_bytes_per_s,
        "domain": sheet.domain,
        "dtype": state.dtype,
        "peak_flops": sheet.peak_flops[state.dtype],
        "devices": state.devices,
        "step_s": state.step_s,
        "tokens_per_s": rate,
        "tokens_per_s_lo": low,
        "tokens_per_s_hi": high,
        "tokens_per_j": found.tokens_per_j,
        "device_usd": found.device_usd,
        "usd_per_hour": found.usd_per_hour,
        "usd_per_mtok": found.usd_per_mtok,
    }
