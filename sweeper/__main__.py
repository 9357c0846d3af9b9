"""The command line: a first word without `=` is a command, everything else is Hydra's.

One Hydra job is one sweep. This is the only module that imports Hydra, and it does so only when a
space is given; queries answer without it, and without Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from simulators.core.errors import UnknownNameError, UserError, suggestion

if TYPE_CHECKING:
    from omegaconf import DictConfig

COMMANDS = (
    "ask", "list", "show", "plan", "pareto", "query", "report", "plot", "explain", "compare",
    "export", "verify", "schema", "validate", "doctor",
)  # fmt: skip

USAGE = """\
python -m sweeper +space=NAME [key=value ...]   run (or resume) a sweep; ends with its Pareto front
python -m sweeper ask --model M --gpu G --gpus N --qps Q    the cheapest deployment, by flags alone
python -m sweeper plan +space=NAME              points, removed, answered already; time and bytes

Of a sweep that has been run (KEY: the first digits of a design's key, or `knee`):
python -m sweeper pareto NAME [--min A --max B --where SQL --per COLUMN --write FILE --json]
python -m sweeper query NAME KIND [...]         sensitivity, cheapest, best-per, near, likely ...
python -m sweeper show NAME KEY                 one design
python -m sweeper explain NAME KEY [--trace F]  where its time, energy and memory go
python -m sweeper compare NAME KEY KEY          two designs; or one and a measurement: --log FILE
python -m sweeper export NAME KEY [--target T]  the command or manifest that deploys it
python -m sweeper report NAME                   one HTML page: the answer, the front, what matters
python -m sweeper plot NAME KIND FILE           front, parallel, heat, curves ... as PNG or SVG
python -m sweeper verify NAME                   simulate a sample again and compare bit by bit

python -m sweeper list [KIND]                   what there is: spaces, gpus, models, schedulers ...
python -m sweeper show NAME                     what a space, gpu, simulator ... is
python -m sweeper schema [--write FILE]         JSON Schema of space files, for an editor
python -m sweeper validate [ROOM ...]           accuracy against measured data
python -m sweeper doctor                        load every fact and calibration, run every simulator

Overrides, as in Hydra:
  'space.axes.tp=[4,8]'  'space.axes.qps=0.5..32 log 13'  'space.axes.batch=pow2 1..64'
  sampler=random sampler.points=500    sampler=sobol    engine=inline    engine=ray engine.actors=4
  outputs=/data/sweeps   output=json   failures.retry=true   plot=false

First steps:  python -m sweeper +space=quickstart
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; mistakes are explained, not traced."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Matrices are small here: more threads would mostly wait for each other. numpy reads it once.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return _dispatch(words)
    except UserError as error:
        sys.stdout.flush()
        print(f"sweeper: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nsweeper: stopped; what was written is kept, and the same command goes on",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:  # `| head` closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"sweeper {version('sweeper')}")
        return 0
    first = words[0]
    if "=" in first or first.startswith(("+", "-", "~")):
        from sweeper.commands import run

        return run.main(compose(words))
    if first not in COMMANDS:
        raise _no_command(first, words[1:])
    if first == "plan":
        if any(word in ("-h", "--help") for word in words[1:]):
            print(_usage_of("plan"))
            return 0
        from sweeper.commands import plan

        return plan.main(compose(words[1:]))
    import importlib

    command = importlib.import_module(f"sweeper.commands.{first}")
    code: int = command.main(words[1:])
    return code


def _no_command(first: str, rest: list[str]) -> UserError:
    """Return what to say of a word that is no command; a space's name means to run it."""
    from sweeper import places

    known = places.spaces()
    meant = next((w for w in (first, *rest) if w in known), "NAME")
    hint = "" if first in known else suggestion(first, COMMANDS)
    return UserError(
        f"there is no command '{first}'{hint}\n"
        f"Commands: {', '.join(COMMANDS)}; a sweep is started by +space={meant}"
    )


def _usage_of(command: str) -> str:
    """Return the line of the usage that is about a command."""
    return next(line for line in USAGE.splitlines() if f"sweeper {command} " in line)


def compose(words: list[str]) -> dict[str, Any]:
    """Return the configuration that these overrides make, with the space's name under `name`.

    Raises:
        UserError: an override cannot be read, or names a key that is not there.
    """
    from sweeper import places
    from sweeper.commands.spaces import read_space

    words = [f"+{w}" if w.startswith("space=") else w for w in words]
    chosen = [w for w in words if w.startswith("+space=")]
    if not chosen:
        meant = next((w for w in words if w in places.spaces()), "NAME")
        raise UserError(
            f"which space? Write +space={meant}\nKnown: {', '.join(places.spaces()) or 'none'}"
        )
    if flags := [w for w in words if w.startswith("-")]:
        raise UserError(
            f"'{flags[0]}' is no option of a sweep; its options are keys, as in output=json"
        )
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"'{word}' is not an override; write key=value")
    file = places.find_space(chosen[-1].removeprefix("+space="))
    overrides = [w for w in words if not w.startswith("+space=")]
    node = read_space(file, complete=True)
    inputs = dict.fromkeys(n for grid in node.get("union") or [] for n in grid)
    with _hydra_errors(overrides, [*(node.get("axes") or {}), *inputs]):
        config = _compose(file.stem, node, [*map_replacements(overrides), f"+space={file.stem}"])
    config["name"] = file.stem
    return config


def map_replacements(overrides: list[str]) -> list[str]:
    """Make an override of a whole mapping replace it, where Hydra would merge the two.

    And read a condition as text, where Hydra would look for a grammar in its signs.

    >>> map_replacements(["space.objectives={mfu: max}"])
    ['~space.objectives', '+space.objectives={mfu: max}']
    >>> map_replacements(["space.where=mfu > 0.3"])
    ['space.where="mfu > 0.3"']
    """
    result: list[str] = []
    for word in overrides:
        if word.startswith(("space.objectives={", "space.derived={")):
            result += [f"~{word.split('=')[0]}", f"+{word}"]
        elif match := re.fullmatch(r"(\+*space\.(?:where|slo))=([^'\"\s].*)", word):
            text = match[2].replace("\\", "\\\\").replace('"', '\\"')
            result.append(word if text == "null" else f'{match[1]}="{text}"')
        else:
            result.append(word)
    return result


def _compose(name: str, node: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from sweeper import engines, places, samplers

    store = ConfigStore.instance()
    for sampler in samplers.names():
        _offer("sampler", sampler, samplers.options_of(sampler))
    for engine in engines.ENGINES:
        _offer("engine", engine, engines.options_of(engine))
    store.store(group="space", name=name, node=OmegaConf.create(node), package="space")
    with initialize_config_dir(version_base="1.3", config_dir=str(places.conf())):
        config: DictConfig = hydra_compose(config_name="config", overrides=overrides)
    choices = dict(w.split("=", 1) for w in overrides if w.startswith(("sampler=", "engine=")))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    plain["sampler"] = {"name": choices.get("sampler", "grid"), **plain["sampler"]}
    plain["engine"] = {"name": choices.get("engine", "auto"), **plain["engine"]}
    _check_choices(plain)
    return plain


def _fields(options: type) -> tuple[str, ...]:
    return ("name", *(f.name for f in dataclasses.fields(options)))


def _check_choices(plain: dict[str, Any]) -> None:
    """Raise `UserError` for a key added by `+` that nothing reads, or a choice of another kind."""
    from sweeper import engines, samplers

    failures = plain["failures"]
    sampler, engine = plain["sampler"], plain["engine"]
    for room, keys, known in (
        ("", plain, _TOP),
        ("failures.", failures, _FAILURES),
        ("sampler.", sampler, _fields(samplers.options_of(sampler["name"]))),
        ("engine.", engine, _fields(engines.options_of(engine["name"]))),
    ):
        for key in keys:
            if key not in known:
                raise UserError(
                    f"there is no key '{room}{key}'{suggestion(key, known)}\n"
                    f"Known: {', '.join(known)}"
                )
    for path, value in (("plot", plain["plot"]), ("failures.retry", failures["retry"])):
        if not isinstance(value, bool):
            raise UserError(f"{path}={value}: write {path}=true or {path}=false")
    most = failures["max"]
    if most is not None and (isinstance(most, bool) or not isinstance(most, int)):
        raise UserError(f"failures.max={most}: write a whole number, or null for no limit")


def _offer(group: str, name: str, kind: type) -> None:
    """Make `group=name` and `group.field=value` work on the command line, with checked types."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    node = OmegaConf.structured(kind)
    OmegaConf.set_readonly(node, False)  # frozen dataclasses arrive read-only
    ConfigStore.instance().store(group=group, name=name, node=node)


@contextlib.contextmanager
def _hydra_errors(overrides: list[str], axes: list[str]) -> Iterator[None]:
    """Say in one paragraph what Hydra and OmegaConf say in several."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        raise UserError(_plainly(str(error), str(cause).strip(), overrides, axes)) from None


def _plainly(hydra: str, omegaconf: str, overrides: list[str], axes: list[str]) -> str:
    """Return what is wrong with the overrides, in terms of the words that were typed."""
    from sweeper import engines, samplers

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
    from sweeper import engines, samplers
    from sweeper.config import KEYS

    leaf = key.split(".")[-1]
    word = next((w for w in overrides if leaf and leaf in w.split("=")[0]), key)
    path = word.split("=")[0].lstrip("+~")
    room = path.rsplit(".", 1)[0] if "." in path else ""
    chosen = dict(w.split("=", 1) for w in overrides if w.startswith(("sampler=", "engine=")))
    if room == "space.axes":
        return (
            f"'{word}': axis '{leaf}' is not an input of this space's simulator"
            f"{suggestion(leaf, axes)}\nIts inputs: {', '.join(axes)}"
        )
    known: tuple[str, ...] = _TOP
    if room == "engine":
        known = _options(engines.options_of(chosen.get("engine", "auto")))
    elif room == "sampler":
        known = _options(samplers.options_of(chosen.get("sampler", "grid")))
    elif room == "failures":
        known = _FAILURES
    elif path.startswith("space."):
        known = KEYS
    if not known:
        chosen_one = chosen.get(room, {"sampler": "grid", "engine": "auto"}.get(room, ""))
        return (
            f"'{word}': there is no key '{path}': {room} '{chosen_one}' has no options; "
            f"choose another by {room}=NAME"
        )
    listing = ", ".join(known)
    return f"'{word}': there is no key '{path}'{suggestion(leaf, known)}\nKnown: {listing}"


def _options(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


_TOP = ("space", "sampler", "engine", "outputs", "output", "plot", "failures")
_FAILURES = ("retry", "max")


if __name__ == "__main__":
    sys.exit(main())
