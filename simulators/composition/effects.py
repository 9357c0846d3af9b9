"""Between kernels lies what makes a model slower, or faster, than its kernels alone.

    launch            hosts take time to launch kernels, and gaps stand between those of a layer
    fusion            what stands between two products runs as one kernel
    synchronisation   a host waits for the tokens of an iteration before it prepares the next
    clocks            boards at their power limit slow down while matrix units are busy
    prompt            a host turns the text of a prompt into tokens

Each can be left out, which says how much it contributes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from simulators.core.errors import UnknownNameError

NOTHING = "nothing"
"""Left out by default."""


@dataclass(frozen=True)
class Effects:
    """What is counted besides kernels and messages that follow each other at once."""

    launch: bool = True
    fusion: bool = True
    synchronisation: bool = True
    clocks: bool = True
    prompt: bool = True


EVERYTHING = Effects()
NAMES = tuple(f.name for f in fields(Effects))


def effects_without(names: str) -> Effects:
    """Return all effects but those named, joined by `+`.

    Raises:
        UnknownNameError: there is no such effect.

    >>> effects_without("launch+clocks")
    Effects(launch=False, fusion=True, synchronisation=True, clocks=False, prompt=True)
    """
    left_out = {} if names == NOTHING else dict.fromkeys(names.split("+"), False)
    for name in left_out:
        if name not in NAMES:
            raise UnknownNameError("effect", name, (*NAMES, NOTHING))
    return replace(EVERYTHING, **left_out)
