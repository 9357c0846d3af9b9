"""The physics never walks a set: its order, and so a sum's last bits, changes with the hash seed.

A set may be asked, compared, counted and sorted. Walking one is refused wherever its syntax shows:
a literal, a comprehension, `set(...)`, `frozenset(...)`, `a.keys() & b`, or a name bound to one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("simulators", "planning", "formats")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
ORDERLESS = {"sorted", "len", "any", "all", "min", "max", "set", "frozenset", "bool"}
"""What takes a set without its order telling; of equal elements min and max are alike."""
WALKING = {
    "sum",
    "list",
    "tuple",
    "enumerate",
    "zip",
    "map",
    "filter",
    "iter",
    "next",
    "reversed",
    "fromkeys",
    "chain",
    "from_iterable",
    "array",
    "fromiter",
    "fsum",
    "prod",
    "join",
    "extend",
    "product",
    "reduce",
}
"""Calls that pass on the order of what they are given."""
METHODS = {"union", "intersection", "difference", "symmetric_difference"}
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | ast.ClassDef


def is_set(node: ast.expr, names: set[str]) -> bool:
    """Return whether an expression is a set by its syntax; `names` are those bound to sets."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(value=value, attr=attribute)):
            return attribute in METHODS and (is_set(value, names) or is_keys(value))
        case ast.BinOp(
            left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.Sub(), right=r
        ):
            return any(is_set(side, names) or is_keys(side) for side in (left, r))
        case ast.IfExp(body=body, orelse=other):
            return is_set(body, names) or is_set(other, names)
        case ast.NamedExpr(value=value):
            return is_set(value, names)
    return False


def is_keys(node: ast.expr) -> bool:
    """Return whether an expression is the view of a mapping's keys or items."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("keys", "items")
    )


def bound(scope: ast.AST) -> set[str]:
    """Return the names that a scope binds to sets, by what is assigned or annotated."""
    names: set[str] = set()
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_set(value, names):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if _annotated(kind):
                names.add(name)
            case ast.arg(arg=name, annotation=kind) if kind is not None and _annotated(kind):
                names.add(name)
    return names


def _annotated(kind: ast.expr) -> bool:
    return ast.unparse(kind).split("[")[0] in ("set", "frozenset", "Set", "AbstractSet")


def walked(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the sets of a file that are walked."""
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    everywhere = bound(ast.Module(body=[n for n in tree.body if not _own(n)], type_ignores=[]))
    for scope, names in [(tree, everywhere), *((s, bound(s) | everywhere) for s in scopes)]:
        excused = {
            id(comprehension)
            for call in ast.walk(scope)
            if isinstance(call, ast.Call) and called(call) in ORDERLESS
            for comprehension in call.args
            if isinstance(comprehension, ast.GeneratorExp | ast.ListComp)
        }
        for node in _inside(scope):
            yield from (n for n in _walks(node, excused) if is_set(n, names))


def _own(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, not those of functions inside a module, which are their own."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(scope, ast.Module | ast.ClassDef) and isinstance(child, ast.FunctionDef):
            continue
        yield child
        yield from _inside(child)


def _walks(node: ast.AST, excused: set[int]) -> Iterator[ast.expr]:
    match node:
        case ast.For(iter=it) | ast.AsyncFor(iter=it) | ast.YieldFrom(value=it):
            yield it
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            if id(node) not in excused:  # a set made of a set has no order to lose
                yield from (generator.iter for generator in node.generators)
        case ast.Starred(value=value):
            yield value
        case ast.Call() if called(node) in WALKING:
            yield from node.args


def called(call: ast.Call) -> str:
    """Return the last word of what is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: pass",
        "total = sum(set(a))",
        "total = sum(f(x) for x in a.keys() & b.keys())",
        "def f(a):\n    kinds = {x.kind for x in a}\n    return [g(k) for k in kinds]",
        "def f(a: frozenset[str]) -> list[str]:\n    return [*a]",
        "both = {k: a[k] for k in set(a) | set(b)}",
    ],
)
def test_iteration_over_a_set_is_detected(text: str) -> None:
    assert list(walked(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted({1, 2}): pass",
        "n = len(set(a)); k = 1 in {1, 2}",
        "found = any(x > 2 for x in set(a))",
        "kinds = {x.kind for x in {1, 2}}",
        "for name in dict.fromkeys(a): pass",
    ],
)
def test_order_independent_use_of_a_set_is_allowed(text: str) -> None:
    assert not list(walked(ast.parse(text)))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(Path(f).relative_to(ROOT)))
def test_simulators_never_iterate_over_sets(file: Path) -> None:
    found = walked(ast.parse(file.read_text(encoding="utf-8")))
    assert sorted({f"line {node.lineno}: {ast.unparse(node)}" for node in found}) == []
