"""Read from a checkpoint's configs which groups of its weights are quantized, and how.

`huggingface.toml` holds the names of modules and precisions. Sources: `quantization_config` of a
`config.json`, and the `hf_quant_config.json` beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from formats.huggingface import KEYS, read_config
from simulators.core.errors import UserError
from simulators.core.folder import read_toml

BF16 = "bf16"
MODULE = r"(?!mtp)(?:.*?layers\.(\d+)[.*]*)?(.*)"
"""Number of a layer, if any, and module in it."""
ALL = -1
"""Number of a layer in names that hold for all layers."""


def precisions_of(
    config: Mapping[str, Any], path: Path, layers: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    """Return the share of each stored precision in each group of a checkpoint's weights.

    `layers` counts the layers that have a group. An unknown precision raises `UserError`.
    """
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    quant = read_config(beside) if beside.is_file() else {}
    quant = quant.get("quantization", quant) | (config.get("quantization_config") or {})
    known = read_toml(KEYS)

    def stored(algorithm: str) -> str:
        if algorithm not in known["precisions"]:
            raise UserError(f"{path}: quantization '{algorithm}' is not known")
        blocks = "_block" if quant.get("weight_block_size") and algorithm == "fp8" else ""
        return str(known["precisions"][algorithm]) + blocks

    method = quant.get("format") or quant.get("quant_method") or BF16
    algorithm = quant.get("quant_algo") or method
    mixed = algorithm == "MIXED_PRECISION"  # all layers of another precision are listed
    usual = stored(method if mixed else algorithm)
    names = (quant.get(key) or () for key in known["kept_modules"])
    split = (re.match(MODULE, name) for some in names for name in some)
    kept = [(int(m[1]) if m[1] else ALL, m[2]) for m in split if m and not mixed]
    mixture = layers["dense"] if layers["experts"] else 0  # leading layers without experts
    end = config.get("num_hidden_layers")
    end = end if isinstance(end, int) else 1 << 16
    found = {}
    for group, pattern in known["modules"].items():
        named = Counter(
            stored(how["quant_algo"])
            for module, how in (quant.get("quantized_layers") or {}).items()
            if re.search(pattern, module)
        )
        inside = {ALL, *range(mixture if group in ("shared", "experts") else 0, end)}
        matching = {n for n, module in kept if not module or re.search(pattern, module)} & inside
        out = 1.0 if ALL in matching else min(1.0, len(matching) / max(1, layers[group]))
        base = config.get("expert_dtype", "") if group == "experts" else ""
        shares = named or Counter({stored(base) if base else usual: 1.0 - out}) + Counter(
            {BF16: out}
        )
        found[group] = {name: n / sum(shares.values()) for name, n in shares.items()}
    return found
