"""Kernels: called by other kernels and from Python."""

from simulators.core.jit import f8, kernel


@kernel(f8(f8))
def _half(x: float) -> float:
    return x / 2.0


@kernel(f8(f8))
def _quarter(x: float) -> float:
    return _half(_half(x))


def test_a_kernel_that_others_call_is_called_from_python_too() -> None:
    assert _quarter(8.0) == _quarter.py_func(8.0) == 2.0
    assert _half.inner.stats.cache_path == _half.compiled.stats.cache_path
    assert _half(8.0) == 4.0
