"""Architectures and problems written as compact YAML tables for comparison with Timeloop.

The tables name what Timeloop's own files name: levels outermost first with mesh, width, depth and
bandwidth; shapes with dimensions and projections; coefficients by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import TENSORS, Accelerator, accelerator_of
from simulators.core.errors import UserError
from simulators.workload.loop_nest import Layer, Tensor

__all__ = ["accelerator_from_table", "layer_from_table", "read_yaml"]


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        UserError: it cannot be read, or is not YAML; says where.
    """
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # untyped
        """Reads tags such as `!Component` as what they stand before."""

    Loader.add_multi_constructor("!", lambda loader, _, node: loader.construct_mapping(node, True))
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error


def accelerator_from_table(name: str, table: Mapping[str, Any], path: Path) -> Accelerator:
    """Return an architecture of the compact tables: `levels`, outermost first, and `mac`."""
    levels = []
    for level in table["levels"]:
        energy = dict(level["energy_pj"])
        entry = {
            "name": level["name"],
            "mesh": list(level["mesh"]),
            "kind": "dram" if level["dram"] else "sram",
            "width_bits": level["width_bits"],
            "word_bits": level["word_bits"],
            "energy_pj": energy,
            "may_keep": [list(keep) for keep in level["may_keep"]],
        }
        for ours, theirs in (
            ("depth", "depth"),
            ("read_words_per_cycle", "read_bandwidth"),
            ("write_words_per_cycle", "write_bandwidth"),
            ("shared_words_per_cycle", "shared_bandwidth"),
        ):
            if level[theirs] is not None:
                entry[ours] = level[theirs]
        levels.append(entry)
    mac = {key: table["mac"][key] for key in ("mesh", "word_bits", "energy_pj")}
    return accelerator_of(
        {"name": name, "source": str(table["origin"]), "levels": levels, "mac": mac}, path
    )


def layer_from_table(name: str, tables: Mapping[str, Any]) -> Layer:
    """Return a problem of the compact tables: `shapes` with projections, `problems` with bounds."""
    problem = tables["problems"][name]
    shape = tables["shapes"][problem["shape"]]
    return layer_of(name, shape["dims"], shape["dataspaces"], problem["bounds"], problem["coef"])


def layer_of(
    name: str,
    dims: Sequence[str],
    dataspaces: Mapping[str, Any],
    bounds: Mapping[str, int],
    coef: Mapping[str, int],
) -> Layer:
    """Return a layer from projections whose coefficients may be named."""

    def rank(terms: Any) -> tuple[tuple[str, int], ...]:
        if isinstance(terms[0], str) and len(terms) == 1:
            return ((terms[0], 1),)
        return tuple((str(term[0]), _coef(term, coef)) for term in terms)

    tensors = [
        Tensor(label, tuple(rank(terms) for terms in dataspaces[label]), label == "Outputs")
        for label in TENSORS
    ]
    return Layer(name, tuple(dims), tuple(int(bounds[d]) for d in dims), tuple(tensors))


def _coef(term: Sequence[Any], named: Mapping[str, int]) -> int:
    if len(term) == 1:
        return 1
    return int(named.get(term[1], 1)) if isinstance(term[1], str) else int(term[1])
