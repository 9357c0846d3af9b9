"""Compiled kernels: callable from kernels and from Python, compiled once."""

import os
import subprocess
import sys
from pathlib import Path

from simulators.core.jit import f8, kernel


@kernel(f8(f8))
def _half(x: float) -> float:
    return x / 2.0


@kernel(f8(f8))
def _quarter(x: float) -> float:
    return _half(_half(x))


def test_kernel_is_callable_from_kernels_and_from_python() -> None:
    assert _quarter(8.0) == _quarter.py_func(8.0) == 2.0
    assert _half.inner.stats.cache_path == _half.compiled.stats.cache_path
    assert _half(8.0) == 4.0


DOUBLES = True


@kernel(f8(f8))
def _scaled(x: float) -> float:
    if DOUBLES and x > 0.0:
        return 2.0 * x
    return _half(x)


@kernel(f8(f8))
def _scaled_twice(x: float) -> float:
    return _scaled(_scaled(x))


def test_kernel_recompiles_for_other_constants() -> None:
    other = _scaled_twice.where(DOUBLES=False)
    assert other is _scaled_twice.where(DOUBLES=False)
    assert (_scaled_twice(8.0), other(8.0), other.py_func(8.0)) == (32.0, 2.0, 2.0)
    assert _quarter.where(DOUBLES=False) is _quarter


_COUNT_COMPILATIONS = """
import sys
import numba
sys.stdin.readline()
from simulators.core.jit import compile_all
from tests.core.test_jit import _half, _quarter
compile_all(_half, _quarter)
for made in (_half.compiled, _half.inner, _quarter.compiled):
    print(sum(made.stats.cache_misses.values()))
"""


def test_concurrent_processes_compile_a_kernel_once(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _COUNT_COMPILATIONS]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(
            words, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=300)[0].split() for process in processes]
    assert [sum(map(int, each)) for each in zip(*printed, strict=True)] == [1, 1, 1]


_NUMBA_AS_INSTALLED = """
import inspect, numba
from numba.core import caching, codegen, types
from numba.core.datamodel import default_manager
before = [inspect.getsource(x) for x in (caching.Cache.load_overload, codegen.JITCPUCodegen)]
model = default_manager.lookup.__func__, dict(default_manager._handlers)
import sweeper, simulators, simulators.core.jit
simulators.core.jit._numba()
after = [inspect.getsource(x) for x in (caching.Cache.load_overload, codegen.JITCPUCodegen)]
assert before == after and model[1] == default_manager._handlers
print("unchanged")
"""


def test_numba_configuration_is_unchanged() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NUMBA_AS_INSTALLED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "unchanged"
