"""Trainings of a user's script with `roundelay.attach` in it, for scaling: started by `roundelay launch` on this host,
or on several, each of which starts its own learners.

The script is told the strategy, the learning rate and the seed by its arguments, and says held-out losses by
`session.report`. A training that was stopped begins anew.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.parent import die_with_parent
from roundelay.core.progress import Progress
from roundelay.core.records import EVENTS, Results
from roundelay.grids.grid import Cell, CellWork, Configuration, Contenders, Tuning, Work, stem
from roundelay.grids.trials import RATE_OF_SCRIPTS, Trials, turn_of
from roundelay.job import Interrupt
from roundelay.reports.runs import load_run
from roundelay.run_directory import alone, claim_directory, commit, machine
from roundelay.runtime.hosts.control.turns import FirstHost
from roundelay.runtime.launch.world import REPORT, STRAGGLERS, HostPlace, environment_alone, environment_at
from roundelay.strategies import make_strategy

PLACEHOLDERS = ("{strategy}", "{rate}", "{seed}")
"""Places in the script's arguments that are filled in for each training."""
SAID = "said.txt"
"""File of the script's output, in the directory of each training."""
FIRST_SEED = 1
"""Seed under which rates are tried; those that judge come after it."""
STOP_LOOK_SECONDS = 0.2
"""Seconds between two looks whether a training is to stop."""


@dataclass(frozen=True)
class Script:
    """A script and its arguments, which have all of `PLACEHOLDERS`."""

    path: Path
    arguments: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise UserError(
                f"{self.path}: no such file. Give a recipe, or a Python script with roundelay.attach in it."
            )
        if missing := [place for place in PLACEHOLDERS if not any(place in text for text in self.arguments)]:
            raise UserError(
                f"{self.path}: its arguments do not say where {' and '.join(missing)} goes. Give them behind --, for "
                "example -- --strategy {strategy} --lr {rate} --seed {seed}."
            )

    def filled(self, values: Mapping[str, str]) -> list[str]:
        """Return the script's arguments for one training, with `values` in the places of `PLACEHOLDERS`."""
        found = list(self.arguments)
        for place, value in values.items():
            found = [text.replace(place, value) for text in found]
        return found

    def kept(self) -> dict[str, Any]:
        """Return all that identifies this script, as a plain mapping."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {"file": str(self.path.absolute()), "sha256": digest, "arguments": list(self.arguments)}


@dataclass(frozen=True)
class ScriptConfiguration(Configuration):
    """Everything that defines a training of a script except its seed."""

    script: Script
    text: str  # the strategy as it was written
    rate: str = ""  # the learning rate, as text; empty where it is still to be chosen

    def kept(self, seed: int) -> dict[str, Any]:
        """Return the content of recipe.yaml in the training's directory."""
        return {
            "name": self.script.path.stem,
            "script": self.script.kept(),
            "rate": float(self.rate),
            "training": {
                "strategy": self.strategy.name,
                "options": plain(self.strategy),
                "learners": self.learners,
                "seed": seed,
                "stragglers": list(self.stragglers),
                "runtime": "procs",
            },
        }


@dataclass(frozen=True, kw_only=True)
class ScriptTrials(Trials):
    """Trainings of a script for scaling."""

    script: Script
    contenders: Contenders  # all that is wanted but rates

    @classmethod
    def of(cls, script: Script, contenders: Contenders, rates: Sequence[float], folder: Path) -> "ScriptTrials":
        """Return the trials of a script at the learning rates `rates`.

        Raises:
            UserError: there are fewer than two rates.
        """
        if len(set(rates)) < 2:
            raise UserError(f"{script.path}: give the learning rates that are to be tried, as --rates 0.01,0.02,0.04.")
        return cls(
            name=script.path.stem,
            data=script.path.name,
            folder=folder,
            rates=tuple(dict.fromkeys(rates)),
            seeds=tuple(range(FIRST_SEED + 1, FIRST_SEED + 1 + contenders.seeds)),
            about="as the script has them, for every learner",
            script=script,
            contenders=contenders,
        )

    def tunings(self, rates: Sequence[float]) -> tuple[Tuning, ...]:
        return tuple(self._tuning(*way, rates) for way in self.contenders.ways())

    def _tuning(self, text: str, learners: int, slow: tuple[str, ...], rates: Sequence[float]) -> Tuning:
        strategy = make_strategy(text)

        def configuration(rate: float | None) -> ScriptConfiguration:
            apart = {} if rate is None else {"rate": rate}
            name = stem(strategy, learners, slow, apart)
            written = "" if rate is None else repr(rate)
            return ScriptConfiguration(
                strategy, learners, slow, ((RATE_OF_SCRIPTS, rate),), name, self.script, text, written
            )

        trials = tuple(self.cell(configuration(rate), FIRST_SEED) for rate in rates)
        return Tuning(configuration(None), (RATE_OF_SCRIPTS,), trials)

    def cell(self, configuration: Configuration, seed: int) -> Cell:
        return Cell(self.folder / f"{configuration.stem}-seed{seed}", configuration, seed)

    @property
    def work(self) -> Work:
        return partial(ScriptWork, first=self.first)

    def take_part(self, cell: Cell, place: HostPlace, asked: Callable[[], bool]) -> None:
        assert isinstance(cell.configuration, ScriptConfiguration)
        cell.exp.mkdir(parents=True, exist_ok=True)
        said = cell.exp / f"said-{place.ranks[0]}.txt"
        status = run_script(cell.configuration, cell.seed, len(place.ranks), environment_at(place), said, asked)
        if status:
            raise UserError(_failed(cell.configuration.script.path, status, said))

    def check(self) -> None:
        for tuning in self.tunings(self.rates):
            tuning.configuration.strategy.check(tuning.configuration.learners)


def run_script(
    what: ScriptConfiguration, seed: int, here: int, given: Mapping[str, str], said: Path, asked: Callable[[], bool]
) -> int | None:
    """Run a script with `here` learners on this host; return its exit status, or None if `asked` said to stop.

    Args:
        given: variables of the environment for the script.
        said: file for the script's output.
    """
    parent, values = os.getpid(), dict(zip(PLACEHOLDERS, (what.text, what.rate, str(seed)), strict=True))
    command = [sys.executable, "-m", "roundelay", "launch", "-n", str(here), str(what.script.path)]
    with open(said, "wb") as file:
        process = subprocess.Popen(
            [*command, *what.script.filled(values)],
            env={"OMP_NUM_THREADS": "1", **given, STRAGGLERS: ",".join(what.stragglers)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us, who tell it to end
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 it calls the kernel, and nothing else
        )
        while True:
            try:
                return process.wait(STOP_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if asked():
                    process.terminate()
                    process.wait()
                    return None


def _failed(script: Path, status: int, said: Path) -> str:
    """Return a sentence on a script that has failed, with the end of its output."""
    lines = said.read_text(encoding="utf-8", errors="replace").split("\n")
    its = (line.strip() for line in reversed(lines) if not line.startswith("roundelay: "))  # the launcher's
    last = next(filter(None, its), "nothing")
    return f"{script} ended with status {status}. What it said is in {said}; its last line: {last}"


class ScriptWork(CellWork):
    """The work on a cell that trains a script.

    Args:
        first: tells the other hosts of each training; None: there are no others.
    """

    def __init__(
        self, cell: Cell, decode: bool, progress: Progress, interrupt: Interrupt, first: FirstHost | None = None
    ) -> None:
        assert isinstance(cell.configuration, ScriptConfiguration)
        assert not decode
        self.cell, self.configuration, self._first = cell, cell.configuration, first
        self.progress, self.interrupt = progress, interrupt

    def go(self) -> bool:
        exp = self.cell.exp
        claim_directory(exp, self.configuration.kept(self.cell.seed))
        if not (exp / Results.FILE).exists():
            self.new = True
            self.interrupt.busy = True
            with alone(exp):
                (exp / EVENTS).unlink(missing_ok=True)
                self.progress.start("training")
                status = self._run()
                self.progress.finish()
                if status is None:
                    return False
                self._conclude(status)
        self.trained = True
        return True

    def _run(self) -> int | None:
        """Run the script with the cell's learners; return its exit status, or None if it was stopped."""
        what, exp, report = self.configuration, self.cell.exp, {REPORT: str(self.cell.exp.absolute())}
        with turn_of(self._first, self.cell) as place:
            environment = environment_alone() if place is None else environment_at(place)
            here = what.learners if place is None else len(place.ranks)
            given = {**environment, **report}
            status = run_script(what, self.cell.seed, here, given, exp / SAID, lambda: self.interrupt.asked)
            if status != 0 and place is not None and self._first is not None:
                self._first.stop()
        return status

    def _conclude(self, status: int) -> None:
        """Write the results of a script that has ended.

        Raises:
            UserError: the script failed or reported no loss; says where its output is.
        """
        exp, path = self.cell.exp, self.configuration.script.path
        if status:
            raise UserError(_failed(path, status, exp / SAID))
        if not (exp / EVENTS).exists():
            raise UserError(f"{path} reported no held-out loss: call session.report(loss) where it evaluates.")
        run = load_run(exp)
        results = replace(
            run.results,
            corpus=path.name,
            seed=self.cell.seed,
            commit=commit(),
            machine=machine(),
            frames_seen=run.evaluations[-1].frames,
            stopped="the script came to its end",
        )
        results.write(exp)
