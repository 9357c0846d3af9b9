"""The deployment of a design: a command line or a manifest, ready to run."""

from __future__ import annotations

from pathlib import Path

from simulators.core.errors import Infeasible, UserError
from sweeper.commands.flags import results_flags
from sweeper.commands.opened import tell_age
from sweeper.questions import DEPLOYMENTS, Deploys, known_beside
from sweeper.report.answers import latest, point_of
from sweeper.report.tables import write_text
from sweeper.store.keys import SHOWN


def main(words: list[str]) -> int:
    """Print the deployment, or write it to a file."""
    parser = results_flags("export", "the deployment of one design of a sweep")
    parser.add_argument("key", help="the first digits of a design's key, or `knee`")
    parser.add_argument("--target", default="", help="engine or orchestrator; else as designed")
    parser.add_argument("--file", metavar="FILE", help="write it there")
    chosen = parser.parse_args(words)
    last = latest(chosen.name, chosen.outputs)
    tell_age(last)
    key, row = last.design(chosen.key)
    simulator = last.simulator
    writer = known_beside(simulator, DEPLOYMENTS)
    if not isinstance(writer, Deploys):
        raise UserError(f"designs of the simulator '{simulator.name}' are not deployments")
    try:
        text = writer.deployment(
            point_of(simulator, row), chosen.target, f"{chosen.name} {key[:SHOWN]}"
        )
    except Infeasible as verdict:
        raise UserError(f"this design cannot exist: {verdict}") from verdict
    if chosen.file:
        write_text(Path(chosen.file), text)
        print(f"written to {chosen.file}")
    else:
        print(text, end="")
    return 0
