"""What numba is taught: what only kernels call is optimised and translated with its callers.

By itself numba does both for each kernel, with all that it calls: a fifth of the time that the
event loop of serving took to compile. It takes named tuples apart at each call, another tenth. And
it imports all that it can translate before it loads what was translated before, which takes a
quarter of a second in each process. Imported with the first kernel that is called.
"""

from __future__ import annotations

from typing import Any

from numba.core import caching, codegen, types
from numba.core.datamodel import default_manager, models
from numba.core.runtime import rtsys

INNER = ".inner"
"""What the names of kernels as kernels call them end with."""


class Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """What becomes of a kernel; of an inner one only what is inlined into, or linked to, more."""

    @property
    def is_inner(self) -> bool:
        """Whether only kernels call it."""
        return str(self.name).endswith(INNER)

    def _optimize_final_module(self) -> None:
        if not self.is_inner:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        if not self.is_inner:
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return its address, if it has one."""
        return 0 if self.is_inner else super().get_pointer_to_function(name)

    def serialize_using_object_code(self) -> Any:
        """Return what is kept in the cache."""
        if self.is_inner:
            return self.serialize_using_bitcode()
        return super().serialize_using_object_code()


_SET_ENV = codegen.JITCPUCodegen.set_env


def _set_env_if_there(self: Any, name: str, environment: Any) -> None:
    if self._engine.is_symbol_defined(name):
        _SET_ENV(self, name, environment)


codegen.JITCPUCodegen._library_class = Library
codegen.JITCPUCodegen.set_env = _set_env_if_there


def _load_overload(self: Any, signature: Any, context: Any) -> Any:
    """Load with what compiled code calls, and nothing of what compiles it."""
    rtsys.initialize(context)
    with self._guard_against_spurious_io_errors():
        return self._load_overload(signature, context)


caching.Cache.load_overload = _load_overload


class Whole(models.TupleModel):  # type: ignore[misc]
    """A named tuple that is handed over as one value, not as the numbers of all its arrays.

    Those of the state of a run are 270, taken apart and put together again at each call.
    """

    def get_argument_type(self) -> Any:
        """Return what it is handed over as."""
        return self.get_value_type()

    def as_argument(self, _builder: Any, value: Any) -> Any:
        """Return what is handed over for a value."""
        return value

    def from_argument(self, _builder: Any, value: Any) -> Any:
        """Return the value that was handed over."""
        return value


def _model_of(manager: Any, kind: Any) -> Any:
    """Return how a named tuple is handed over; those of other packages as numba does."""
    ours = kind.instance_class.__module__.startswith(f"{__name__.partition('.')[0]}.")
    return (Whole if ours else models.TupleModel)(manager, kind)


default_manager.register(types.NamedTuple, _model_of)  # type: ignore[attr-defined]
