"""Plausible run directories, written through core.records, for tests of what reads them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roundelay.core.files import write_text
from roundelay.core.records import (
    CheckpointWritten,
    Evaluation,
    Exchanges,
    Finished,
    Interrupted,
    LearnerLost,
    Record,
    Results,
    RunStarted,
    Segment,
    Staleness,
    WordErrors,
    to_line,
)
from roundelay.core.streams import stream

EPOCH_FRAMES = 280_000
WORDS = 773


@dataclass(frozen=True, kw_only=True)
class Fake:
    """The description of an invented run."""

    name: str = "run"
    label: str = "adpsgd random-ring"
    learners: int = 4
    seed: int = 1
    runtime: str = "procs"
    epochs: int = 9
    end: str = "finished"  # or "interrupted", "killed", "no events", "no results"
    speed: float = 40_000.0  # frames per second, all learners
    straggler: int | None = None  # this learner is three times slower
    excess: float = 0.0  # cross-entropy above what one learner reaches
    decoded: bool = True
    lost: int | None = None
    examples: str = "frames"  # or "utterances", with a loss of CTC
    recipe: str = "model:\n  layers: 4\n  units: 512\nseed: {seed}\n"

    @property
    def strategy(self) -> str:
        return self.label.split()[0]

    @property
    def wording(self) -> dict[str, Any]:
        """Fields of records that say what is counted and measured."""
        if self.examples == "frames":
            return {}
        words = {"examples": self.examples, "measured": "CTC loss of an utterance", "right": "utterances right"}
        return {**words, "minibatch_sequences": 1024}


def write_run(folder: Path, fake: Fake) -> Path:
    """Write the directory of a run, the folder of the run's name in `folder`, and return it."""
    run = folder / fake.name
    run.mkdir(parents=True)
    records = fake_records(fake)
    if fake.end != "no events":
        write_text(run / "events.jsonl", "".join(to_line(record) + "\n" for record in records))
    if fake.end in ("finished", "no events"):
        fake_results(fake, records).write(run)
    if fake.recipe:
        write_text(run / "recipe.yaml", fake.recipe.format(seed=fake.seed))
    return run


def without_checksum(lines: str) -> str:
    """Return the lines of an events.jsonl as earlier versions wrote them, without checksums."""
    return re.sub(r',"crc32":"[0-9a-f]{8}"}', "}", lines)


def _about(fake: Fake) -> dict[str, Any]:
    """Return the fields that the first record and the results share."""
    fixed = {
        "commit": "1f0c2ab",
        "machine": "2 cores of a Sample CPU",
        "parameters": 1_830_000,
        "minibatch_frames": 1024,
    }
    named = {name: getattr(fake, name) for name in ("strategy", "label", "runtime", "learners", "seed")}
    return {**fixed, **named, "minibatch_frames": 1024, **fake.wording}


def fake_records(fake: Fake) -> list[Record]:
    """Return the events of a run whose loss falls as losses usually do."""
    numbers = stream(fake.seed, "fake", fake.label, fake.learners)
    shares = np.full(fake.learners, 1.0)
    if fake.straggler is not None:
        shares[fake.straggler] = 1 / 3
    shares /= shares.sum()
    seconds, rate = EPOCH_FRAMES / fake.speed, 0.1
    start = RunStarted(
        wall_s=0.0,
        train_frames=EPOCH_FRAMES,
        **_about(fake),
    )
    records: list[Record] = [start, _evaluation(fake, -1, 0.0, math.log(608), 0.002, accepted=True)]
    for epoch in range(fake.epochs):
        clock = (epoch + 1) * seconds
        loss = 1.62 + fake.excess + 1.9 * math.exp(-0.55 * epoch) + 0.015 * float(numbers.standard_normal())
        accepted = epoch != 5
        loss += 0.0 if accepted else 0.12
        rate = rate if epoch < 4 else rate / 2
        frames = numbers.multinomial(EPOCH_FRAMES, shares)
        virtual = 3 * clock if fake.runtime == "sim" else None
        wall = clock * (0.2 if fake.runtime == "sim" else 1.0)
        records += [
            Segment(
                wall_s=wall,
                virtual_s=virtual,
                epoch=epoch,
                learning_rate=rate,
                frames=EPOCH_FRAMES * (epoch + 1),
                loss=loss * 0.9,
                accuracy=0.6 - 0.1 * loss / 1.6 + 0.1,
                frames_per_second=EPOCH_FRAMES / seconds * 1.08,
                learner_frames=frames.tolist(),
                learner_steps=(frames // 256).tolist(),
            ),
            _evaluation(fake, epoch, clock, loss, 0.75 - 0.12 * loss, accepted=accepted),
            _staleness(fake, epoch, wall, numbers),
            Exchanges(wall_s=wall, virtual_s=virtual, epoch=epoch, matrix=_matrix(fake, numbers)),
            CheckpointWritten(wall_s=wall, virtual_s=virtual, epoch=epoch, file=f"checkpoint-{epoch}.safetensors"),
        ]
        if fake.lost is not None and epoch == 3:
            records.append(LearnerLost(wall_s=clock, rank=fake.lost, reason="killed by signal 9"))
    done = fake.epochs * seconds
    if fake.end == "interrupted":
        records.append(Interrupted(wall_s=done, epoch=fake.epochs, frames=EPOCH_FRAMES * fake.epochs))
    elif fake.end != "killed":
        reason = "held-out loss fell by less than 0.1 %"
        records.append(Finished(wall_s=done, frames=EPOCH_FRAMES * fake.epochs, reason=reason))
    return records


def _evaluation(fake: Fake, epoch: int, clock: float, loss: float, accuracy: float, *, accepted: bool) -> Evaluation:
    return Evaluation(
        wall_s=clock * (0.2 if fake.runtime == "sim" else 1.0),
        virtual_s=3 * clock if fake.runtime == "sim" else None,
        epoch=epoch,
        split="dev",
        frames=EPOCH_FRAMES * (epoch + 1),
        cross_entropy=loss,
        accuracy=accuracy,
        consensus_distance=0.0 if fake.learners == 1 else 0.004,
        accepted=accepted,
    )


def _staleness(fake: Fake, epoch: int, wall: float, numbers: np.random.Generator) -> Staleness:
    if fake.strategy != "adpsgd":
        return Staleness(wall_s=wall, epoch=epoch, histogram=[1090] + [0] * 15, largest=0, mean=0.0)
    ages = np.minimum(numbers.poisson(1.7, 1090), 15)
    histogram = np.bincount(ages, minlength=16)
    return Staleness(
        wall_s=wall, epoch=epoch, histogram=histogram.tolist(), largest=int(ages.max()), mean=float(ages.mean())
    )


def _matrix(fake: Fake, numbers: np.random.Generator) -> list[list[int]]:
    n = fake.learners
    matrix = np.zeros((n, n), dtype=int)
    if fake.strategy == "adpsgd" and n > 1:
        for i in range(n):
            others = [j for j in range(n) if j != i] if "random" in fake.label else [(i - 1) % n, (i + 1) % n]
            matrix[i, others] = numbers.poisson(250 / len(others) + 1, len(others))
            if fake.straggler == i:
                matrix[i] //= 3
    return matrix.tolist()


def fake_results(fake: Fake, records: Sequence[Record]) -> Results:
    """Return the results of the run with these records."""
    numbers = stream(fake.seed, "fake words", fake.label, fake.learners)
    evaluations = [r for r in records if isinstance(r, Evaluation) and r.accepted]
    stale = [r for r in records if isinstance(r, Staleness)]
    wer = {}
    for split, words in (("dev", 420), ("test", WORDS)) if fake.decoded else ():
        errors = int(numbers.poisson(0.059 * words + 20 * fake.excess))
        ins, del_ = errors // 6, errors // 4
        wer[split] = WordErrors(
            wer=100 * errors / words,
            ins=ins,
            del_=del_,
            sub=errors - ins - del_,
            ref=words,
            utterances=words // 6,
            acoustic_scale=0.1,
        )
    return Results(
        name=fake.name,
        corpus="an4",
        epochs=fake.epochs,
        frames_seen=EPOCH_FRAMES * fake.epochs,
        frame_cross_entropy={"dev": evaluations[-1].cross_entropy},
        frame_accuracy={"dev": evaluations[-1].accuracy},
        wall_seconds=records[-1].wall_s,
        virtual_seconds=evaluations[-1].virtual_s,
        staleness={"mean": float(np.mean([s.mean for s in stale])), "largest": float(max(s.largest for s in stale))},
        consensus_distance=0.004,
        stopped="held-out loss fell by less than 0.1 %",
        wer=wer,
        **_about(fake),
    )
