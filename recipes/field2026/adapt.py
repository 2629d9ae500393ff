#!/usr/bin/env python
"""Train, then adapt: each finished run of a frame network is adapted to each held-out speaker, and judged on the rest.

    python recipes/field2026/adapt.py RUN... [--rates 0.001,0.002,...] [--scale 0.1]

Of each speaker's utterances every second one is trained on and the others are judged, then the other way round, so that
all are judged once. As `roundelay finetune` does by default: Adam, ten epochs of 256 frames, a rate that falls to
nothing along a line, the first layer alone. Labels are those of the alignment, made with the transcripts. With one
rate, words are decoded as well. RUN/adaptation.json has what is done, which is not done again.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.files import write_json
from roundelay.core.flat import load as load_flat
from roundelay.core.progress import Silent
from roundelay.core.state import Statistics
from roundelay.learner.module import ModuleLearner
from roundelay_speech.models.frames import FrameExamples, log_likelihoods
from roundelay_speech.prepared import load_corpus
from roundelay_speech.recipes.recipe import Recipe, load_recipe
from roundelay_speech.recognition.recognise import recognise
from roundelay_speech.trained import AcousticModel, load_model
from roundelay_speech.training_index import TrainingIndex

EPOCHS, FRAMES, CLIP = 10, 256, 5.0
SPLITS = ("dev", "test")
Scores = dict[str, np.ndarray]


def halves(recipe: Recipe, split: str) -> list[tuple[str, list[str], list[str]]]:
    """Return (speaker, utterances to adapt on, utterances to judge), twice for every speaker of a split."""
    speakers: dict[str, list[str]] = {}
    for one in load_corpus(recipe.corpus).splits[split]:
        speakers.setdefault(one.speaker, []).append(one.id)
    return [
        (name, sorted(some)[turn::2], sorted(some)[1 - turn :: 2])
        for name, some in sorted(speakers.items())
        for turn in (0, 1)
        if len(some) > 1
    ]


def first_layer(model: AcousticModel) -> Tensor:
    """Return a mask of all parameters: 1 for those of the first layer."""
    named = list(model.module.named_parameters())
    first = named[0][0].rpartition(".")[0]
    return torch.cat([torch.full((p.numel(),), float(name.rpartition(".")[0] == first)) for name, p in named])


def train_on(learner: ModuleLearner, mask: Tensor, rate: float) -> Tensor:
    """Return the parameters after further training on all examples of the learner."""
    x = learner.initial()
    gradient, optimizer = torch.empty_like(x), torch.optim.Adam([x], lr=rate)
    plans = [EpochPlan(epoch, learner.examples, FRAMES, 1, seed=0) for epoch in range(EPOCHS)]
    steps, done = sum(plan.pieces for plan in plans), 0
    for plan in plans:
        for index in range(plan.pieces):
            learner.gradient(x, plan.piece(index), plan, gradient)
            x.grad = gradient.mul_(mask)
            optimizer.param_groups[0]["lr"] = rate * (1 - done / steps)
            optimizer.step()
            done += 1
    return x


def adapt(model: AcousticModel, recipe: Recipe, split: str, rate: float) -> tuple[dict[str, Any], Scores]:
    """Return losses and accuracies a speaker before and after, and the scores of all judged utterances after."""
    index = TrainingIndex.make(recipe.corpus, recipe.aligned)
    mask, scores, found = first_layer(model), Scores(), dict[str, list[Statistics]]()
    start = ModuleLearner(model.module, _examples(model, index, {"train": []}), clip=CLIP).initial()
    for speaker, adapted_on, judged in halves(recipe, split):
        load_flat(model.module, start)
        learner = ModuleLearner(model.module, _examples(model, index, {"train": adapted_on, "rest": judged}), clip=CLIP)
        before, x = learner.evaluate(start, "rest"), train_on(learner, mask, rate)
        sums = found.setdefault(speaker, [Statistics(), Statistics()])
        sums[0] += before
        sums[1] += learner.evaluate(x, "rest")
        load_flat(model.module, x)
        model.module.eval()
        scores |= {one: log_likelihoods(model.module, index.store, one, model.prior) for one in judged}
    load_flat(model.module, start)
    total = [sum((both[when] for both in found.values()), Statistics()) for when in (0, 1)]
    told = {"loss": [one.mean_loss for one in total], "accuracy": [one.accuracy for one in total]}
    return told | {"speakers": {name: [one.mean_loss for one in both] for name, both in found.items()}}, scores


def _examples(model: AcousticModel, index: TrainingIndex, splits: dict[str, list[str]]) -> FrameExamples:
    examples = model.module.examples(index.store, index.labels, splits)
    assert isinstance(examples, FrameExamples)
    return examples


def decode(exp: Path, recipe: Recipe, scores: Scores | None, scale: float, out: Path) -> dict[str, float]:
    """Return word error rates by split, of the run itself or of given scores."""
    fixed = dataclasses.replace(recipe.decode, scale=scale, splits=SPLITS)
    if scores is not None:
        out.mkdir(parents=True, exist_ok=True)
        np.savez(out / "scores.npz", **scores)
    given = None if scores is None else out / "scores.npz"
    done = recognise(exp, dataclasses.replace(recipe, decode=fixed), Silent(), out=out, scores=given)
    if given is not None:
        given.unlink()
    return {one.split: one.score.errors.wer for one in done}


def main() -> None:
    """Adapt the runs that are named, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument(
        "--rates", default="0.0003", help="of Adam, at first; with several, of dev alone and without words"
    )
    parser.add_argument("--scale", type=float, default=0.1, help="of acoustic scores in the search (default: 0.1)")
    options = parser.parse_args()
    rates = [float(text) for text in options.rates.split(",")]
    for run in options.run:
        recipe, path = load_recipe(str(run / "recipe.yaml")), run / "adaptation.json"
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        for rate in rates:
            told = kept.setdefault(f"{rate:g}", {})
            scores = Scores()
            for split in SPLITS if len(rates) == 1 else ("dev",):
                if split not in told or (len(rates) == 1 and "wer" not in told):
                    told[split], some = adapt(load_model(run), recipe, split, rate)
                    scores |= some
            if len(rates) == 1 and "wer" not in told:
                told["wer"] = decode(run, recipe, scores, options.scale, run / "adapted")
            write_json(path, kept)
        if len(rates) == 1 and "wer" not in kept:
            kept["wer"] = decode(run, recipe, None, options.scale, run / "unadapted")
            write_json(path, kept)
        said = {rate: {s: told[s]["loss"] for s in SPLITS if s in told} for rate, told in kept.items() if rate != "wer"}
        print(run.name, said, kept.get("wer", ""), [kept[f"{r:g}"].get("wer") for r in rates], flush=True)


if __name__ == "__main__":
    main()
