"""A training undisturbed, the same in a storm, and once more undisturbed: kept in one folder, with their results."""

import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.core.progress import Progress
from roundelay.core.records import Results, WordErrors
from roundelay_lab.namespaces.hosts import NoNamespaces
from roundelay_lab.storm.faults import Fault, schedule
from roundelay_lab.storm.hosted import LINK, StormCommand
from roundelay_lab.storm.running import watch_training
from roundelay_lab.storm.story import Story, middle_and_worst
from roundelay_lab.storm.training import ScriptCommand, TrainingCommand, label_of

UNDISTURBED, STORM, AFTER = "undisturbed", "storm", "undisturbed-after"
CURVE_POINTS = 2000
"""Most points of curves an epoch, which tell when minibatches were counted."""
LONGEST_STORM = 5.0
"""Faults end after so many times the seconds of the undisturbed run."""
AT_LEAST = 60.0
"""Seconds for which faults may come at least, however short the undisturbed run, since starting takes some."""


@final
@dataclass(frozen=True)
class StormOptions:
    """Options of `roundelay storm`."""

    recipe: str
    out: Path  # folder of both runs
    overrides: tuple[str, ...] = ()
    script: tuple[str, ...] = ()  # a training script and its arguments, instead of a recipe
    strategy: str = ""  # as `train` takes it; empty: the recipe's
    hosts: int = 2
    learners: int = 1  # on each host
    every: float = 60.0  # mean seconds between faults
    lasting: float = 3.0  # mean seconds that a fault lasts, and until a command is given again
    kinds: tuple[str, ...] = ("kill", "crash", "stop", "cut", "slow")
    seed: int = 0  # of the schedule of faults
    most: int = 0  # faults after which there are no more; 0: no limit
    # seconds that every gradient takes longer, so that learners that share cores do not disturb each other.
    pace: float = 0.0
    link: str = LINK  # rate of every host's link, as tc takes it
    peers: bool = False  # any host may lead when the first is lost, so faults do not spare it

    @property
    def counted(self) -> str:
        """Name of the units that are counted: frames or minibatches."""
        return "minibatches" if self.script else "frames"

    def command(self, exp: str) -> StormCommand:
        """Return the command for the run in folder `exp`."""
        common = self.out / exp, self.hosts, self.learners, self.link, self.peers
        if self.script:
            return ScriptCommand(*common, self.script)
        words = ["--strategy", self.strategy] if self.strategy else []
        for rank in range(self.hosts * self.learners if self.pace else 0):
            words += ["--straggler", f"{rank}:+{self.pace:g}"]
        words += [f"training.curve_points={CURVE_POINTS}", *self.overrides]
        return TrainingCommand(*common, self.recipe, tuple(words))

    def outcome(self, exp: str, story: Story) -> "RunEnd":
        """Return the end of the run in folder `exp`, whose story is given."""
        if not self.script:
            return RunEnd.of(Results.read(self.out / exp))
        counted = story.progress[-1][1] if story.progress else 0
        return RunEnd(label_of(self.out / exp) or Path(self.script[0]).name, counted)

    def weather(self) -> dict[str, Any]:
        """Return all options on which the faults depend."""
        return {
            "every": self.every,
            "lasting": self.lasting,
            "kinds": [*self.kinds],
            "seed": self.seed,
            "most": self.most,
            "decks": True,
        }


@final
@dataclass(frozen=True)
class RunEnd:
    """The end of a run: its results."""

    label: str
    counted: int  # minibatches, or frames, trained and counted
    losses: Mapping[str, float] = field(default_factory=dict)  # held-out, by split; none of a script
    wer: Mapping[str, WordErrors] = field(default_factory=dict)  # by split

    @classmethod
    def of(cls, results: Results) -> "RunEnd":
        """Return the end of a run of `roundelay train`."""
        return cls(results.label, results.frames_seen, results.frame_cross_entropy, results.wer)


@final
@dataclass(frozen=True)
class StormResult:
    """Result of a storm: the stories, and the ends of the undisturbed runs and of the one in the storm."""

    undisturbed: Story  # of the run before the storm
    storm: Story
    after: Story  # of the one after it
    results: tuple[RunEnd, RunEnd]
    counted: str = "frames"
    each: int = 1  # learners on a host

    @property
    def calm(self) -> float:
        """Minibatches or frames counted a second without faults, the mean of the runs before and after the storm."""
        return (self.undisturbed.frames_per_second + self.after.frames_per_second) / 2

    @property
    def share(self) -> float:
        """Minibatches or frames counted a second in the storm, over `calm`."""
        return self.storm.frames_per_second / self.calm if self.calm else 0.0

    @property
    def shares(self) -> tuple[float, float]:
        """Minibatches or frames counted a second in the storm, over those of each undisturbed run; the lower first."""
        by = [one.frames_per_second for one in (self.undisturbed, self.after)]
        found = sorted(self.storm.frames_per_second / calm if calm else 0.0 for calm in by)
        return found[0], found[1]

    @property
    def hosts_lost(self) -> int:
        """Number of hosts lost in the storm with all their learners."""
        return self.storm.hosts_lost(self.each)

    @property
    def whole(self) -> str:
        """A sentence on the share, with everything that it depends on."""
        low, high = self.shares
        storm, calm = self.storm, self.undisturbed
        lost = {0: "no host was lost", 1: "1 host was lost"}.get(self.hosts_lost, f"{self.hosts_lost} hosts were lost")
        words = [
            f"{100 * self.share:.1f} % ({100 * low:.1f} to {100 * high:.1f}) of the {self.counted} that count a second "
            "without faults",
            f"{storm.mean_alive:.2f} of {storm.learners} learners alive on average",
        ]
        if storm.participation is not None and calm.participation is not None:
            words.append(f"participation {storm.participation:.2f} of {calm.participation:.2f}")
        return "; ".join([*words, lost, f"{len(storm.struck)} of {storm.drawn} faults met something"])

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as a mapping, for programs."""
        recoveries = self.storm.recoveries()
        others, victims = (
            middle_and_worst(values)
            for values in ([one.others for one in recoveries], [one.victim for one in recoveries])
        )
        calm, stormy = self.results
        return {
            "share": round(self.share, 4),
            "share_range": [round(share, 4) for share in self.shares],
            "faults": len(recoveries),
            "faults_drawn": self.storm.drawn,
            "hosts_lost": self.hosts_lost,
            "learners_alive": round(self.storm.mean_alive, 3),
            "participation": [
                None if one.participation is None else round(one.participation, 3)
                for one in (self.undisturbed, self.storm)
            ],
            "others_s": others,
            "victim_s": victims,
            "starts": self.storm.starts,
            f"{self.counted}_per_second": [round(one.frames_per_second, 1) for one in (self.undisturbed, self.storm)],
            f"{self.counted}_per_second_after": round(self.after.frames_per_second, 1),
            "cross_entropy": [dict(calm.losses), dict(stormy.losses)],
            f"{self.counted}_seen": [calm.counted, stormy.counted],
            "left": self.storm.left,
            "calmed_s": self.storm.since_training().calmed,
        }


def run_storm(options: StormOptions, progress: Progress) -> StormResult:
    """Do all three runs; one that the same command has already done is only read.

    Raises:
        UserError: hosts cannot be made on this machine; the training fails without faults; the folder holds runs of
            another command.
    """
    try:
        calm = _story(options, UNDISTURBED, iter(()), {}, progress)
        spared = options.command(STORM).spares_the_first
        faults = schedule(options.seed, options.hosts, options.every, options.lasting, options.kinds, spared)
        some, longest = (
            islice(faults, options.most or None),
            max(AT_LEAST, LONGEST_STORM * calm.since_training().seconds),
        )
        stormy = _story(options, STORM, some, options.weather(), progress, longest)
        after = _story(options, AFTER, iter(()), {}, progress)
    except NoNamespaces as error:
        raise UserError(
            f"no hosts can be made on this machine: {error}. It takes Linux, root or a kernel that lets users make "
            "namespaces, and Debian's packages iproute2 and util-linux."
        ) from None
    ends = options.outcome(UNDISTURBED, calm), options.outcome(STORM, stormy)
    result = StormResult(calm, stormy, after, ends, options.counted, options.learners)
    write_json(options.out / "storm-result.json", result.to_json())
    return result


def _story(
    options: StormOptions,
    name: str,
    faults: Iterator[Fault],
    weather: dict[str, Any],
    progress: Progress,
    longest: float = math.inf,
) -> Story:
    """Train under the faults and keep the story as JSON, or return the one that an earlier call kept."""
    command, kept = options.command(name), options.out / f"{name}.json"
    told = {**command.told(), **weather}
    if kept.is_file():
        there = read_json(kept)
        if there["told"] != told:
            raise UserError(f"{kept} is of another command: give --out another folder, or remove this one.")
        return Story.from_json(there["story"])
    if command.exp.is_dir():  # of a call that was interrupted: its time cannot be continued
        shutil.rmtree(command.exp)
    story = watch_training(command, faults, options.lasting, progress, longest)
    write_json(kept, {"told": told, "story": story.to_json()})
    return story
