"""Compose command-line overrides into a configuration with Hydra.

This is the only module that imports Hydra.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import sweeper.engines as engines
import sweeper.samplers as samplers
from simulators.core.errors import UnknownNameError, UserError, unknown
from simulators.core.folder import is_dotted
from sweeper.configuration import FAILURES, TOP, check_types
from sweeper.space.shipped_files import conf, find_space, sites, spaces
from sweeper.space.space_file import KEYS, flat, read_site, read_space
from sweeper.space.sql import shown

_USUAL = {"sampler": "grid", "engine": "auto"}
_CONDITION = r"(?:where|slo|(?:when|derived)\.\w+)"


def compose(words: list[str]) -> dict[str, Any]:
    """Return the configuration that these overrides make, with the space's name under `name`."""
    words = with_site([f"+{w}" if w.startswith("space=") else w for w in words])
    chosen = [w for w in words if w.startswith("+space=")]
    if not chosen:
        meant = next((w for w in words if w in spaces()), "NAME")
        raise UserError(
            f"which space? Write +space={meant}\nKnown: {', '.join(spaces()) or 'none'}"
        )
    if flags := [w for w in words if w.startswith("-")]:
        raise UserError(f"a sweep has no option '{flags[0]}'; write key=value, as in output=json")
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"'{word}' is not an override; write key=value")
    file = find_space(chosen[-1].removeprefix("+space="))
    overrides = [w for w in words if not w.startswith("+space=")]
    node = read_space(file, complete=True)
    inputs = dict.fromkeys(n for grid in node.get("union") or [] for n in grid)
    with _hydra_errors(overrides, [*flat(node.get("axes") or {}), *flat(inputs)]):
        return _compose(file.stem, node, [*map_replacements(overrides), f"+space={file.stem}"])


def with_site(words: list[str]) -> list[str]:
    """Return overrides with `site=NAME` expanded; explicit overrides take precedence."""
    named = [word.removeprefix("site=") for word in words if word.startswith("site=")]
    if not named:
        return words
    known = sites()
    if named[-1] not in known:
        raise UnknownNameError("site", named[-1], known, "To add one, write conf/site/NAME.yaml")
    words = [word for word in words if not word.startswith("site=")]
    given = {word.lstrip("+").partition("=")[0] for word in words}
    usual = read_site(known[named[-1]])
    kept = (n for n in usual if n not in given and (n.partition(".")[0] not in given))
    return [*(f"{name}={usual[name]}" for name in kept), *words]


def map_replacements(overrides: list[str]) -> list[str]:
    """Make an override of a whole mapping replace the mapping, where Hydra would merge both.

    Conditions are quoted, so that Hydra reads them as text.

    >>> map_replacements(["space.objectives={mfu: max}"])
    ['~space.objectives', '+space.objectives={mfu: max}']
    >>> map_replacements(["space.where=mfu > 0.3", "space.when.m=k > 1"])
    ['space.where="mfu > 0.3"', '++space.when.m="k > 1"']
    """
    result: list[str] = []
    for word in overrides:
        if word.startswith(("space.objectives={", "space.derived={", "space.when={")):
            result += [f"~{word.split('=')[0]}", f"+{word}"]
            continue
        if word.startswith(("space.derived.", "space.when.")):
            word = f"++{word}"  # adds or replaces the key
        if match := re.fullmatch(rf"(\+*space\.{_CONDITION})=([^'\"\s].*)", word):
            text = match[2].replace("\\", "\\\\").replace('"', '\\"')
            result.append(word if text == "null" else f'{match[1]}="{text}"')
        else:
            result.append(word)
    return result


def _compose(name: str, node: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    store = ConfigStore.instance()
    sampler = _chosen(overrides)["sampler"]
    if not is_dotted(sampler) and sampler not in samplers.names():
        raise UnknownNameError("sampler", sampler, samplers.names())
    _offer("sampler", sampler, samplers.options_of(sampler))
    for engine in engines.ENGINES:
        _offer("engine", engine, engines.options_of(engine))
    store.repo.pop("space", None)  # Hydra copies every stored space each time
    store.store(group="space", name=name, node=OmegaConf.create(node), package="space")
    with initialize_config_dir(version_base="1.3", config_dir=str(conf())):
        config = hydra_compose(config_name="config", overrides=overrides)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    chosen = _chosen(overrides)
    plain["name"] = name
    for group, choice in chosen.items():
        plain[group] = {"name": choice, **plain[group]}
    _check_choices(plain, chosen)
    return plain


def _offer(group: str, name: str, kind: type) -> None:
    """Make `group=name` and `group.field=value` work on the command line, with checked types."""
    node = OmegaConf.structured(kind)
    OmegaConf.set_readonly(node, False)  # frozen dataclasses arrive read-only
    ConfigStore.instance().store(group=group, name=name, node=node)


def _chosen(overrides: list[str]) -> dict[str, str]:
    words = dict(w.split("=", 1) for w in overrides if w.startswith(("sampler=", "engine=")))
    for group, name in words.items():
        if not re.fullmatch(r"[\w./~ -]+", name):
            raise UserError(
                f"{group}={name}: write the name of one {group}, as in {group}={_USUAL[group]}"
            )
    return _USUAL | words


def _known(group: str, chosen: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of a part of the configuration; top-level keys for an unknown part."""
    if group in chosen:
        options = samplers.options_of if group == "sampler" else engines.options_of
        return tuple(f.name for f in dataclasses.fields(options(chosen[group])))
    return {"failures": FAILURES, "space": KEYS}.get(group.split(".")[0], TOP)


def _check_choices(plain: dict[str, Any], chosen: Mapping[str, str]) -> None:
    """Raise `UserError` for an unknown key added by `+`, or a value of the wrong type."""
    check_types(plain)
    for group in ("", "failures", *chosen):
        known = (*(["name"] if group in chosen else []), *_known(group, chosen))
        for key in plain[group] if group else plain:
            if key not in known:
                raise unknown(f"there is no key '{group}{'.' if group else ''}{key}'", key, known)


@contextlib.contextmanager
def _hydra_errors(overrides: list[str], axes: list[str]) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise UserError(shown(f"an override cannot be read: {error}")) from None
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        raise UserError(_plainly(str(error), str(cause).strip(), overrides, axes)) from None


def _plainly(hydra: str, omegaconf: str, overrides: list[str], axes: list[str]) -> str:
    if match := re.search(r"Could not find '(\w+)/([^']*)'", hydra):
        known = {"sampler": samplers.names(), "engine": engines.ENGINES}.get(match[1], ())
        return str(UnknownNameError(match[1], match[2], known))
    if "Ambiguous value" in hydra and (match := re.search(r"argument '([^=']+)=([^']*)'", hydra)):
        return (
            f"'{match[1]}={match[2]}': several values are a list; write '{match[1]}=[{match[2]}]'"
        )
    if (
        any(hint in omegaconf for hint in ("not in struct", "not in '"))
        or "Could not override" in hydra
    ):
        match = re.search(r"Key '([^']+)'", omegaconf) or re.search(r"override '([^']+)'", hydra)
        return _unknown_key(match[1] if match else "", overrides, axes)
    lines = [x.strip() for x in omegaconf.splitlines() if x.strip() and "object_type" not in x]
    message = " ".join(line for line in lines if not line.startswith("full_key"))
    if match := re.search(r"full_key: (\S+)", omegaconf):
        message = f"{match[1]}: {message}"
    if any(hint in omegaconf for hint in ("mismatched input", "no viable alternative", "Lexer")):
        word = next((w for w in overrides if w.split("=")[0] in hydra), "an override")
        message = (
            f"{word} cannot be read. Put quotes around the whole override, as in "
            "'space.axes.tp=[4,8]', and around text with signs in it once more, as in "
            "'space.constraints=[\"tp <= 4\"]'"
        )
    return message


def _unknown_key(key: str, overrides: list[str], axes: list[str]) -> str:
    leaf = key.split(".")[-1]
    word = next((w for w in overrides if leaf and leaf in w.split("=")[0]), key)
    path = word.split("=")[0].lstrip("+~")
    group = path.rsplit(".", 1)[0] if "." in path else ""
    if path.startswith("space.axes."):
        axis = path.removeprefix("space.axes.")
        message = f"'{word}': axis '{axis}' is not an input of this space's simulator"
        return str(unknown(message, axis, axes, "Its inputs"))
    chosen = _chosen(overrides)
    known = _known(group, chosen)
    if not known:
        return (
            f"'{word}': there is no key '{path}': {group} '{chosen[group]}' has no options; "
            f"choose another by {group}=NAME"
        )
    return str(unknown(f"'{word}': there is no key '{path}'", leaf, known))
