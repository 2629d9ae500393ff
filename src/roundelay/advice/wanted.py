"""The request for advice, which is checked without loading torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from roundelay.core.errors import UserError


@final
@dataclass(frozen=True)
class Wanted:
    """The facts that a user asks advice for; None: not given.

    cluster      a YAML file
    probe        a recipe whose model is timed on this machine, or a number of parameters
    run          a run directory whose records are read
    target_loss  held-out loss of the run to which examples are counted
    machines     how many like this one, and the learners on each
    link         rate between them, as tc takes it (100mbit)
    hosts        addresses where `roundelay doctor --listen` waits: links to them are measured
    """

    cluster: Path | None = None
    parameters: float | None = None
    examples: float | None = None
    frames: int | None = None
    momentum: float | None = None
    rate: float | None = None
    probe: str | None = None
    run: Path | None = None
    target_loss: float | None = None
    machines: int | None = None
    learners: int | None = None
    link: str | None = None
    hosts: Sequence[str] = ()
    listen: str | None = None

    def check(self) -> None:
        """Raise a UserError unless facts come from one place."""
        sources = {"a cluster's file": self.cluster, "--probe": self.probe, "--run": self.run}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise UserError(
                f"advise {'takes one of ' + ' and '.join(given) if given else 'has to know the machines'}: give a "
                "cluster's YAML file (docs/simulator.md), --probe RECIPE (or a number of parameters) to time this "
                "machine, or --run DIR."
            )
