"""A run directory, read and checked: the facts that tables and charts show.

A run directory holds `events.jsonl` and, once training has ended, `results.json`; either is enough. An epoch that was
interrupted has a segment for each of its parts; here it is one again.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, final

from roundelay.core.errors import UserError
from roundelay.core.files import parse_yaml
from roundelay.core.records import (
    EVENTS,
    SCHEMA,
    Decoded,
    Evaluation,
    Exchanges,
    Finished,
    Interrupted,
    LearnerJoined,
    LearnerLost,
    LearnersChanged,
    Record,
    Results,
    RunStarted,
    Segment,
    Staleness,
    Timeline,
    WordErrors,
    of_kind,
    read_events,
)

_FRAMES = "frames"


@final
@dataclass(frozen=True)
class Wording:
    """The words by which reports name what objectives count and measure."""

    examples: str = _FRAMES  # the things that are counted, in the plural
    loss: str = "cross-entropy"  # the mean that a run is known by
    unit: str = "nats per frame"  # its unit
    right: str = "accuracy"  # the share that is counted beside it

    @property
    def of_frames(self) -> bool:
        """True if only frames are counted."""
        return self.examples == _FRAMES

    @property
    def loss_meaning(self) -> str:
        """Sentence on the meaning of the loss, for readers who do not know the run."""
        return f"frame {self.loss}" if self.of_frames else self.loss

    @property
    def right_meaning(self) -> str:
        """Sentence on the meaning of the share of correct examples, for readers who do not know the run."""
        return "frames whose tied state was the likeliest" if self.of_frames else self.right


def wording_of(record: RunStarted | Results) -> Wording:
    """Return the wording in a record."""
    if record.examples == _FRAMES:
        return Wording(loss=record.measured, right=record.right)
    one = record.examples.removesuffix("s")
    each = f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
    return Wording(record.examples, record.measured.removesuffix(f" of {each}"), f"nats {each}", record.right)


def together(words: Iterable[Wording]) -> Wording:
    """Return one wording for several runs: their own if all have the same, else words that fit all."""
    kinds = list(dict.fromkeys(words)) or [Wording()]
    if len(kinds) == 1:
        return kinds[0]
    examples, units = (list(dict.fromkeys(getattr(kind, name) for kind in kinds)) for name in ("examples", "unit"))
    return Wording(" or ".join(examples), "loss", units[0] if len(units) == 1 else "nats")


RECIPES = ("recipe.yaml", "recipe.yml", "recipe.json")


class State(Enum):
    """State of a run, as its directory tells it."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    UNFINISHED = "not finished"  # running still, or killed: its directory cannot tell


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as read from its directory: settings, results and records."""

    folder: Path
    name: str
    state: State
    stopped: str  # a sentence: why, or how far
    results: Results  # of a run that has not ended: so far
    held_out: str  # the split that curves show: "dev" where there is one
    recipe: str  # as resolved, text; "" when the directory holds none
    segments: tuple[Segment, ...]  # one an epoch
    evaluations: tuple[Evaluation, ...]  # on `held_out`
    staleness: tuple[Staleness, ...]  # one an epoch
    exchanges: tuple[Exchanges, ...]
    lost: tuple[LearnerLost, ...]
    joined: tuple[LearnerJoined, ...]
    changed: tuple[LearnersChanged, ...]
    timelines: tuple[Timeline, ...] = ()
    epochs_decoded: tuple[Decoded, ...] = ()  # of models at the ends of epochs

    @property
    def cross_entropy(self) -> float | None:
        """Loss of the model kept, on the held-out split; `wording` says which, and its unit."""
        return self.results.frame_cross_entropy.get(self.held_out)

    @property
    def accuracy(self) -> float | None:
        """Share of examples right by the model kept, on the held-out split, 0 to 1."""
        return self.results.frame_accuracy.get(self.held_out)

    @property
    def stale_mean(self) -> float | None:
        """Mean age of a gradient when applied, in versions of the learner's own row."""
        return self.results.staleness.get("mean")

    @property
    def stale_largest(self) -> float | None:
        """Age of the oldest gradient applied, in versions of the learner's own row."""
        return self.results.staleness.get("largest")

    @property
    def settings(self) -> Mapping[str, Any]:
        """The recipe by dotted key (`training.learners`); empty if the recipe is missing or damaged."""
        return _settings(self.recipe)

    @cached_property
    def wording(self) -> Wording:
        """Words for the units that the run counts and measures; runs that did not record them were trained by
        cross-entropy or CTC."""
        named = (self.settings.get("training.objective.name"), self.settings.get("training.objective"))
        if "ctc" in named and wording_of(self.results).of_frames:
            return wording_of(
                dataclasses.replace(self.results, examples="utterances", measured="CTC loss", right="utterances right")
            )
        return wording_of(self.results)

    @property
    def stragglers(self) -> tuple[str, ...]:
        """Learners slowed down on purpose, as the recipe writes them: 1:3x."""
        found = self.settings.get("training.stragglers")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def clock(self, record: Record) -> float:
        """Return the run's seconds at a record: real ones include evaluation, those of a simulation are virtual."""
        return (record.virtual_s or 0.0) if self.simulated else record.wall_s

    @property
    def simulated(self) -> bool:
        """True if the run was simulated, so that its seconds are virtual."""
        return self.results.runtime == "sim"

    @property
    def seconds(self) -> float:
        """Seconds of training: virtual where the run was simulated, else real."""
        virtual = self.results.virtual_seconds
        return virtual if self.simulated and virtual is not None else self.results.wall_seconds

    @property
    def frames_per_second(self) -> float | None:
        """Frames of all learners per second of training segments (evaluation left out); None before the first one."""
        timed = [s for s in self.segments if s.frames_per_second > 0]
        seconds = sum(sum(s.learner_frames) / s.frames_per_second for s in timed)
        if seconds > 0:
            return sum(sum(s.learner_frames) for s in timed) / seconds
        frames = self.results.frames_seen
        return frames / self.seconds if self.seconds > 0 and frames else None


def load_run(folder: Path) -> Run:
    """Read a run directory; return the run.

    Raises:
        UserError: not a run directory, written by a newer version, or a file in it is damaged; names the file.
    """
    results_file, events_file = folder / Results.FILE, folder / EVENTS
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Give the directories that `roundelay train --exp DIR` wrote.")
    if not results_file.exists() and not events_file.exists():
        raise UserError(f"{folder}: not a run directory (neither {EVENTS} nor {Results.FILE} in it).")
    records = read_events(events_file) if events_file.exists() else []
    if results_file.exists():
        return _assemble(folder, Results.read(folder), records, ended=True)
    starts = of_kind(records, RunStarted)
    if not starts:
        raise UserError(f"{events_file}: nothing recorded yet. Wait for the run's first epoch, or remove the folder.")
    return _assemble(folder, _so_far(folder, starts[-1], records), records, ended=False)


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Read several run directories; name each run by the shortest end of its path that differs from all others.

    Raises:
        UserError: no folder is given, or some cannot be read; has a line for each.
    """
    if not folders:
        raise UserError("No run directory given: roundelay report EXP [EXP ...]")
    runs, wrong = [], []
    for folder in folders:
        try:
            runs.append(load_run(folder))
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("\n".join(wrong))
    names = _distinct([run.folder for run in runs])
    return [dataclasses.replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _assemble(folder: Path, results: Results, records: list[Record], *, ended: bool) -> Run:
    """Return a run from its results and event records, its segments and staleness merged by epoch."""
    newest = max([results.schema, *(start.schema for start in of_kind(records, RunStarted))])
    if newest > SCHEMA:
        raise UserError(f"{folder}: written by a newer Roundelay (schema {newest}, this one reads {SCHEMA}). Upgrade.")
    evaluations = of_kind(records, Evaluation)
    splits = [e.split for e in evaluations] or list(results.frame_cross_entropy)
    held_out = "dev" if "dev" in splits or not splits else splits[0]
    state, stopped = _state(records, results.stopped if ended else None)
    return Run(
        folder=folder,
        name=folder.resolve().name,
        state=state,
        stopped=stopped,
        results=dataclasses.replace(results, wer={**_decoded(records), **results.wer}),
        held_out=held_out,
        recipe=_recipe(folder),
        segments=_by_epoch(of_kind(records, Segment), _one_segment),
        evaluations=tuple(e for e in evaluations if e.split == held_out),
        staleness=_by_epoch(of_kind(records, Staleness), _one_staleness),
        exchanges=tuple(of_kind(records, Exchanges)),
        lost=tuple(of_kind(records, LearnerLost)),
        joined=tuple(of_kind(records, LearnerJoined)),
        changed=tuple(of_kind(records, LearnersChanged)),
        timelines=tuple(of_kind(records, Timeline)),
        epochs_decoded=tuple(one for one in of_kind(records, Decoded) if one.epoch is not None),
    )


def _so_far(folder: Path, start: RunStarted, records: list[Record]) -> Results:
    """Return the results that the run would have if it ended now."""
    segments, staleness = of_kind(records, Segment), of_kind(records, Staleness)
    accepted = [e for e in of_kind(records, Evaluation) if e.accepted]
    trained = [r for r in records if isinstance(r, Segment | Evaluation)]
    ages = _one_staleness(staleness) if staleness else None
    names = {one.name for one in dataclasses.fields(Results)} - {"schema"}
    begun = {name: value for name, value in vars(start).items() if name in names}
    return Results(
        **begun,
        name=folder.name,
        corpus="",
        epochs=len({s.epoch for s in segments}),
        frames_seen=segments[-1].frames if segments else 0,
        frame_cross_entropy={e.split: e.cross_entropy for e in accepted},
        frame_accuracy={e.split: e.accuracy for e in accepted},
        wall_seconds=max([r.wall_s for r in trained], default=0.0),
        virtual_seconds=max([r.virtual_s for r in trained if r.virtual_s is not None], default=None),
        staleness={"mean": ages.mean, "largest": float(ages.largest)} if ages else {},
        consensus_distance=accepted[-1].consensus_distance if accepted else 0.0,
        stopped="",
    )


def worded(runs: Iterable[Run]) -> Wording:
    """Return words for the units that several runs count and measure."""
    return together(run.wording for run in runs)


def _state(records: list[Record], reason: str | None) -> tuple[State, str]:
    """Return the state of a training, and a sentence on it; `reason` is from `results.json`, if that is written."""
    training = [r for r in records if not isinstance(r, Decoded)]
    last = training[-1] if training else None
    if isinstance(last, Interrupted):
        return State.INTERRUPTED, f"interrupted in epoch {last.epoch + 1}"
    if isinstance(last, Finished):
        return State.FINISHED, last.reason
    if reason is not None and not of_kind(records, Finished):
        return State.FINISHED, reason
    segments = of_kind(records, Segment)
    so_far = f"after epoch {segments[-1].epoch + 1}" if segments else "in the first epoch"
    return State.UNFINISHED, f"not finished {so_far}: still running, or killed"


def _decoded(records: list[Record]) -> dict[str, WordErrors]:
    """Return the word errors by split in a run's records, for a run whose results.json has none (yet)."""
    found = {}
    for d in of_kind(records, Decoded):
        if d.epoch is not None:
            continue
        ins, del_, sub, ref = (d.errors.get(key, 0) for key in ("ins", "del", "sub", "ref"))
        found[d.split] = WordErrors(
            wer=d.wer, ins=ins, del_=del_, sub=sub, ref=ref, utterances=0, acoustic_scale=d.acoustic_scale
        )
    return found


@lru_cache(maxsize=256)
def _settings(recipe: str) -> Mapping[str, Any]:
    try:
        value = parse_yaml(recipe)
    except ValueError:
        return {}
    return dict(_flat(value, "")) if isinstance(value, dict) else {}


def _flat(value: Mapping[Any, Any], where: str) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict) and item and where.count(".") < 8:  # an anchor may hold itself
            yield from _flat(item, f"{where}{key}.")
        else:
            yield f"{where}{key}", item


def _recipe(folder: Path) -> str:
    there = [path for name in RECIPES if (path := folder / name).is_file()]
    return there[0].read_text(encoding="utf-8", errors="replace") if there else ""


T = TypeVar("T", Segment, Staleness)


def _by_epoch(records: Sequence[T], together: Callable[[Sequence[T]], T]) -> tuple[T, ...]:
    epochs = dict.fromkeys(record.epoch for record in records)
    return tuple(together([record for record in records if record.epoch == epoch]) for epoch in epochs)


def _one_segment(parts: Sequence[Segment]) -> Segment:
    """Combine the parts of an epoch into one segment: sums, and means weighted by frames."""
    frames = [sum(part.learner_frames) for part in parts]
    seconds = sum(n / part.frames_per_second for n, part in zip(frames, parts, strict=True) if part.frames_per_second)
    return dataclasses.replace(
        parts[-1],
        loss=_weighted([part.loss for part in parts], frames),
        accuracy=_weighted([part.accuracy for part in parts], frames),
        frames_per_second=sum(frames) / seconds if seconds else 0.0,
        learner_frames=added([part.learner_frames for part in parts]),
        learner_steps=added([part.learner_steps for part in parts]),
        learner_missing=added([part.learner_missing for part in parts]),
    )


def _one_staleness(parts: Sequence[Staleness]) -> Staleness:
    return dataclasses.replace(
        parts[-1],
        histogram=added([part.histogram for part in parts]),
        largest=max(part.largest for part in parts),
        mean=_weighted([part.mean for part in parts], [sum(part.histogram) for part in parts]),
    )


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else values[-1]


def added(lists: Sequence[Sequence[int]]) -> list[int]:
    """Add lists element by element; shorter ones count as ending in zeros."""
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]


def _distinct(folders: Sequence[Path]) -> list[str]:
    """Return for each path its shortest end that differs from all others: exp/a/1, exp/b/1 -> a/1, b/1."""
    parts = [folder.resolve().parts for folder in folders]
    names = [part[-1:] for part in parts]
    for depth in range(2, max(map(len, parts)) + 1):
        names = [part[-depth:] if names.count(name) > 1 else name for part, name in zip(parts, names, strict=True)]
    return ["/".join(name).replace("//", "/") for name in names]
