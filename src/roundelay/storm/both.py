"""A training undisturbed, and the same in a storm: both kept in one folder, and what came of them."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.runtime.namespaces.hosts import NoNamespaces
from roundelay.storm.faults import Fault, schedule
from roundelay.storm.running import watch_training
from roundelay.storm.story import Story, middle_and_worst
from roundelay.storm.training import LINK, TrainingCommand

UNDISTURBED, STORM = "undisturbed", "storm"
CURVE_POINTS = 2000
"""Points of curves an epoch, at most: they tell when minibatches were counted."""


@final
@dataclass(frozen=True)
class StormOptions:
    """Options of `roundelay storm`.

    Attributes:
        out: folder of both runs.
        strategy: as `train` takes it; empty: the recipe's.
        learners: on each host.
        every: mean seconds between faults.
        lasting: mean seconds that a fault lasts, and until a command is given again.
        seed: of the schedule of faults.
        most: faults after which there are no more; 0: no limit.
        pace: seconds that every gradient takes longer, so that learners that share cores do not disturb each other.
        link: rate of every host's link, as tc takes it.
    """

    recipe: str
    out: Path
    overrides: tuple[str, ...] = ()
    strategy: str = ""
    hosts: int = 2
    learners: int = 1
    every: float = 60.0
    lasting: float = 3.0
    kinds: tuple[str, ...] = ("kill", "crash", "stop", "cut", "slow")
    seed: int = 0
    most: int = 0
    pace: float = 0.0
    link: str = LINK

    def command(self, exp: str) -> TrainingCommand:
        """The command of one of the two runs."""
        words = ["--strategy", self.strategy] if self.strategy else []
        for rank in range(self.hosts * self.learners if self.pace else 0):
            words += ["--straggler", f"{rank}:+{self.pace:g}"]
        words += [f"training.curve_points={CURVE_POINTS}", *self.overrides]
        return TrainingCommand(self.recipe, self.out / exp, self.hosts, self.learners, tuple(words), self.link)

    def weather(self) -> dict[str, Any]:
        """Everything that decides about faults."""
        return {
            "every": self.every,
            "lasting": self.lasting,
            "kinds": [*self.kinds],
            "seed": self.seed,
            "most": self.most,
        }


@final
@dataclass(frozen=True)
class StormResult:
    """Both stories, and the results of both runs."""

    undisturbed: Story
    storm: Story
    results: tuple[Results, Results]

    @property
    def share(self) -> float:
        """Minibatches that count a second in the storm, over those of the undisturbed run."""
        calm = self.undisturbed.frames_per_second
        return self.storm.frames_per_second / calm if calm else 0.0

    def to_json(self) -> dict[str, Any]:
        """The numbers, for programs."""
        recoveries = self.storm.recoveries()
        others, victims = (
            middle_and_worst(values)
            for values in ([one.others for one in recoveries], [one.victim for one in recoveries])
        )
        calm, stormy = self.results
        return {
            "share": round(self.share, 4),
            "faults": len(recoveries),
            "others_s": others,
            "victim_s": victims,
            "starts": self.storm.starts,
            "frames_per_second": [round(one.frames_per_second, 1) for one in (self.undisturbed, self.storm)],
            "cross_entropy": [calm.frame_cross_entropy, stormy.frame_cross_entropy],
            "frames_seen": [calm.frames_seen, stormy.frames_seen],
            "left": self.storm.left,
        }


def run_storm(options: StormOptions, progress: Progress) -> StormResult:
    """Both runs; one that is there already, from the same command, is not run again.

    Raises:
        UserError: hosts cannot be made on this machine; the training fails by itself; the folder holds runs of another
            command.
    """
    try:
        calm = _story(options, UNDISTURBED, iter(()), {}, progress)
        faults = schedule(options.seed, options.hosts, options.every, options.lasting, options.kinds)
        stormy = _story(options, STORM, islice(faults, options.most or None), options.weather(), progress)
    except NoNamespaces as error:
        raise UserError(
            f"no hosts can be made on this machine: {error}. It takes Linux, root or a kernel that lets users make "
            "namespaces, and Debian's packages iproute2 and util-linux."
        ) from None
    result = StormResult(calm, stormy, (results_of(options.out / UNDISTURBED), results_of(options.out / STORM)))
    write_json(options.out / "storm-result.json", result.to_json())
    return result


def _story(
    options: StormOptions, name: str, faults: Iterator[Fault], weather: dict[str, Any], progress: Progress
) -> Story:
    command, kept = options.command(name), options.out / f"{name}.json"
    told = {
        "recipe": command.recipe,
        "hosts": command.hosts,
        "learners": command.learners,
        "options": [*command.options],
        "link": command.link,
        **weather,
    }
    if kept.is_file():
        there = read_json(kept)
        if there["told"] != told:
            raise UserError(f"{kept} is of another command: give --out another folder, or remove this one.")
        return Story.from_json(there["story"])
    if command.exp.is_dir():  # of a call that was interrupted: its time cannot be continued
        shutil.rmtree(command.exp)
    story = watch_training(command, faults, options.lasting, progress)
    write_json(kept, {"told": told, "story": story.to_json()})
    return story


def results_of(exp: Path) -> Results:
    """The results of a run that has ended."""
    return Results.from_json(read_json(exp / Results.FILE))
