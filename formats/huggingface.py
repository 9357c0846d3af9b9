"""Read the sizes of a model from a Hugging Face `config.json`: decoders, and families of graphs.

`huggingface.toml` maps the key names of model families, and holds values implied by a family, as
expressions of the keys. Keys that may change shapes, memory or time are understood or refused.
Encoders, image models and denoisers are graphs; other configs are decoder-only transformers.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateError

from simulators.core.errors import UserError
from simulators.core.folder import read_toml

Config = dict[str, Any]

KEYS = Path(__file__).with_suffix(".toml")

PATTERNS: dict[str, dict[str, Any]] = read_toml(KEYS)["patterns"]

SMALL: tuple[object, ...] = (None, 0, 1, [], {})
"""Values of unknown keys that add nothing."""


def sheet_of_config(path: Path) -> Config:
    """Return the fields of a `LanguageModel` that a `config.json` states or implies.

    Raises:
        UserError: the file is not JSON, not the configuration of a decoder-only transformer, or has
            a key that may change shapes, memory or time, and whose meaning is not modelled.
    """
    (config, family), known = decoder_config(path), read_toml(KEYS)
    if family in known["other_models"] or config.get("is_encoder_decoder"):
        raise UserError(f"{path}: '{family}' is not a decoder-only transformer")
    _check_keys(config, known, path)
    words, kinds = known["words"], layer_kinds(config, path)
    sheet = {ours: size for ours, theirs in words.items() if (size := _first_int(config, theirs))}
    mixers = sum(kinds[kind] for kind in ("full", "window", "state"))
    stated = {*sheet, *(("layers",) if mixers else ())}
    if missing := [f"{n} ({words[n][0]})" for n in known["needed"] if n not in stated]:
        raise UserError(f"{path}: the config does not state {', '.join(missing)}")
    has = {trait: family in families for trait, families in known["families"].items()}
    values = {**config, "kinds": kinds, "mixers": mixers, "has": has}
    return {**_derived(known, sheet, values, path), **_origin(config, path)}


def decoder_config(path: Path) -> tuple[Config, str]:
    """Return the keys of a config's text model, with defaults of its family, and the family."""
    whole, known = read_config(path), read_toml(KEYS)
    text = whole["text_config"] if isinstance(whole.get("text_config"), dict) else whole
    config = {key: whole[key] for key in known["shared_keys"] if key in whole} | text
    wanted: dict[str, Any] = dict.fromkeys((*known["nested"], "quantization_config"), dict)
    wanted |= {k: int | str | list if "every" in v else list | str for k, v in PATTERNS.items()}
    for key, kind in wanted.items():
        if config.get(key) and not isinstance(config[key], kind):
            raise UserError(f"{path}: '{key}' has an unknown form: {config[key]!r:.40}")
    for table, prefix in known["nested"].items():
        config |= {f"{prefix}{key}": value for key, value in (config.get(table) or {}).items()}
    family = str(config.get("model_type") or whole.get("model_type", "")).removesuffix("_text")
    for key, value in known["defaults"].get(family, {}).items():
        config[key] = text.get(value) if isinstance(value, str) else config.get(key, value)
    return config, family


def layer_kinds(config: Config, path: Path) -> Counter[str]:
    """Return the number of layers of each kind by a config's patterns, or raise `UserError`."""
    found, known = Counter[str](), read_toml(KEYS)
    layers = _first_int(config, known["words"]["layers"])
    for key, kinds in PATTERNS.items():
        value = config.get(key) or ()
        if "listed" in kinds:
            named = [kinds["listed"]] * len(value)
        elif isinstance(value, int):
            named = [kinds["every"][(i + 1) % value > 0] for i in range(layers)]
        else:
            symbols = [str(symbol) for symbol in value[: layers or None]]
            if unknown := [symbol for symbol in symbols if symbol not in kinds]:
                raise UserError(f"{path}: '{unknown[0]}' of '{key}' is no known kind of layer")
            if 0 < len(symbols) < layers:
                raise UserError(f"{path}: '{key}' names {len(symbols)} of {layers} layers")
            named = [kinds[symbol] for symbol in symbols]
        found |= Counter(named)
    lists = [key for key in PATTERNS if "listed" in PATTERNS[key] and config.get(key)]
    listed = sum(len(config[key]) for key in lists)
    if lists and listed != layers:
        raise UserError(f"{path}: {' and '.join(lists)} list {listed} of {layers} layers")
    return found


def _check_keys(config: Config, known: Config, path: Path) -> None:
    """Raise `UserError` if a key has a meaning that is not modelled, or an unknown one."""
    for key, meaning in known["refused"].items():
        if config.get(key):
            raise UserError(f"{path}: '{key}' is not supported: it means {meaning}")
    for key, only in known["only"].items():
        value, wanted = config.get(key), config.get(only) if isinstance(only, str) else only
        if isinstance(value, int) and value != wanted:
            raise UserError(f"{path}: '{key}' is {value}; only {wanted} is supported")
    names = {key for theirs in known["words"].values() for key in theirs}
    names |= {*known["patterns"], *known["only"], *known["refused"]}
    names |= {v for table in known["defaults"].values() for v in table.values() if v in config}
    for key in (key for key in config if key not in names):
        is_size = not isinstance(config[key], str | bool | float) and config[key] not in SMALL
        if is_size and not any(fnmatch(key, pattern) for pattern in known["ignored"]["keys"]):
            raise UserError(f"{path}: '{key}' is unknown; it may change shapes, memory or time")


def _derived(known: Mapping[str, Any], sheet: Config, values: Config, path: Path) -> Config:
    """Return a sheet with values of expressions; raise `UserError` where a refusal holds."""
    try:
        for sentence, holds in known.get("refusals", {}).items():
            if _expression(holds)(**values, m=sheet):
                raise UserError(f"{path}: {sentence}")
        for ours, expression in known["derived"].items():
            sheet[ours] = _expression(expression)(**values, m=sheet)
    except (TemplateError, TypeError) as missing:
        raise UserError(f"{path}: the config does not state a size: {missing}") from missing
    return sheet


@functools.cache
def _expression(text: str) -> Callable[..., Any]:
    found = Environment(autoescape=False)  # noqa: S701 - values, not web pages
    found.filters["contains"] = lambda whole, part: part in whole
    return found.compile_expression(text)


def is_graph_config(path: Path) -> bool:
    """Return whether a config describes a family of graphs.

    Raises:
        UserError: the file is not a JSON object.
    """
    return bool(_graph_family(read_config(path)))


def graph_sheet_of_config(path: Path) -> Config:
    """Return the family of graphs and the sizes that a config states.

    Raises:
        UserError: a size is missing.
    """
    config = read_config(path)
    family = _graph_family(config)
    known = read_toml(KEYS)["graphs"][family]
    try:
        sheet = {ours: _stated(config, theirs) for ours, theirs in known["words"].items()}
    except KeyError as missing:
        raise UserError(f"{path}: the config does not state {missing}") from missing
    sheet = _derived(known, sheet, config, path)
    return {**_origin(config, path), "family": family, **sheet}


def read_config(path: Path) -> Config:
    """Return the keys of a JSON object in a file, or raise `UserError`."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a readable Hugging Face config: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: a Hugging Face config is a JSON object")
    return config


def _origin(config: Config, path: Path) -> dict[str, str]:
    name = str(config.get("_name_or_path") or path.parent.name or path.stem)
    return {"name": name, "source": str(path)}


def _first_int(config: Config, keys: Sequence[str]) -> int:
    return next((int(config[key]) for key in keys if isinstance(config.get(key), int)), 0)


def _stated(config: Config, keys: Sequence[str]) -> Any:
    """Return the first value among several keys that is not zero. Raises KeyError without a key."""
    return next((config[key] for key in keys if config.get(key)), None) or config[keys[-1]]


def _graph_family(config: Config) -> str:
    """Return the family of graphs that a config describes; empty for a decoder."""
    kind, known = config.get("model_type") or config.get("_class_name"), read_toml(KEYS)["graphs"]
    return next((family for family, words in known.items() if kind in words["kinds"]), "")
