"""What the mapper minimises: a name, or any expression of what a mapping costs.

An expression becomes a short program for a stack, which the walk runs for every mapping.

    >>> objective("energy_pj * cycles ** 2").program.shape
    (5, 2)
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError, suggestion
from simulators.core.jit import Floats, array, f8, kernel, matrix

NAMED = {
    "edp": "energy_pj * cycles",
    "energy": "energy_pj * cycles ** 0.001",
    "cycles": "cycles * energy_pj ** 0.001",
}
"""Of two mappings equal in energy or in cycles, the better in the other is taken."""

QUANTITIES = ("energy_pj", "cycles", "utilization", "area_mm2")
DEPTH = 16

NUMBER, QUANTITY, ADD, SUBTRACT, MULTIPLY, DIVIDE, POWER, LEAST, MOST = range(9)
_BINARY: dict[type, int] = {
    ast.Add: ADD,
    ast.Sub: SUBTRACT,
    ast.Mult: MULTIPLY,
    ast.Div: DIVIDE,
    ast.Pow: POWER,
}
_CALLS = {"min": LEAST, "max": MOST}


@dataclass(frozen=True)
class Objective:
    """An expression, ready to be run.

    `bounded`: more energy or more cycles never make it smaller, so that bounds of them bound it.
    """

    program: Floats
    bounded: bool

    def value(
        self, *, energy_pj: float, cycles: float, utilization: float, area_mm2: float
    ) -> float:
        """Return what a mapping scores; less is better."""
        quantities = np.array([energy_pj, cycles, utilization, area_mm2])
        return float(score(self.program, quantities, np.zeros(DEPTH)))


@kernel(f8(matrix(f8), array(f8), array(f8)), borrows=True)
def score(program: Floats, quantities: Floats, stack: Floats) -> float:
    """Run a program on a mapping's quantities."""
    top = -1
    for k in range(program.shape[0]):
        code, value = int(program[k, 0]), program[k, 1]
        if code <= QUANTITY:
            top += 1
            stack[top] = value if code == NUMBER else quantities[int(value)]
            continue
        a, b = stack[top - 1], stack[top]
        top -= 1
        if code == ADD:
            stack[top] = a + b
        elif code == SUBTRACT:
            stack[top] = a - b
        elif code == MULTIPLY:
            stack[top] = a * b
        elif code == DIVIDE:
            stack[top] = a / b if b != 0.0 else np.inf
        elif code == POWER:
            stack[top] = a**b
        elif code == LEAST:
            stack[top] = min(a, b)
        else:
            stack[top] = max(a, b)
    return float(stack[0])


def objective(goal: str) -> Objective:
    """Return the objective of that name, or that expression.

    Raises:
        UserError: it is no expression of what is known, or too long.
    """
    text = NAMED.get(goal, goal)
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise UserError(f"goal '{goal}' is not an expression: {error.msg}") from error
    program: list[tuple[float, float]] = []
    _compile(tree, goal, program)
    depth = deepest = 0
    for code, _ in program:
        depth += 1 if code <= QUANTITY else -1
        deepest = max(deepest, depth)
    if deepest > DEPTH:
        raise UserError(f"goal '{goal}' is nested too deeply; {DEPTH} levels are possible")
    return Objective(np.array(program, np.float64), _grows(tree))


def _compile(node: ast.expr, goal: str, program: list[tuple[float, float]]) -> None:
    """Append the operations of an expression, operands first."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        program.append((NUMBER, float(node.value)))
    elif isinstance(node, ast.Name):
        if node.id not in QUANTITIES:
            known = (*NAMED, *QUANTITIES)
            raise UserError(
                f"goal '{goal}': unknown '{node.id}'{suggestion(node.id, known)}; known are "
                f"{', '.join(NAMED)}, and expressions of {', '.join(QUANTITIES)}"
            )
        program.append((QUANTITY, float(QUANTITIES.index(node.id))))
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        _compile(node.left, goal, program)
        _compile(node.right, goal, program)
        program.append((_BINARY[type(node.op)], 0.0))
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
        and len(node.args) == 2
    ):
        for argument in node.args:
            _compile(argument, goal, program)
        program.append((_CALLS[node.func.id], 0.0))
    else:
        raise UserError(
            f"goal '{goal}': '{ast.unparse(node)}' is not possible; numbers, names, + - * / **, "
            "min(a, b) and max(a, b) are"
        )


def _grows(node: ast.expr) -> bool:
    """Whether an expression never shrinks when energy or cycles grow, and utilization shrinks."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and node.value >= 0
    if isinstance(node, ast.Name):
        return node.id != "utilization"
    if isinstance(node, ast.Call):
        return all(_grows(argument) for argument in node.args)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add | ast.Mult):
            return _grows(node.left) and _grows(node.right)
        if isinstance(node.op, ast.Pow):
            return _grows(node.left) and isinstance(node.right, ast.Constant)
        if isinstance(node.op, ast.Div):
            falls = isinstance(node.right, ast.Name) and node.right.id == "utilization"
            return _grows(node.left) and (falls or isinstance(node.right, ast.Constant))
    return False
