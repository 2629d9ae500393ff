"""Align a corpus again with trained networks: better labels for the next training."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.hmm.alignment import SUMMARY, Alignment, AlignSummary
from roundelay_speech.hmm.task import REALIGN_SCALE, ModelScores, RealignConfig, realign
from roundelay_speech.prepared import load_corpus
from roundelay_speech.recipes.recipe import kept_recipe
from roundelay_speech.recognition.loglikelihoods import EnsembleMember, mean_of
from roundelay_speech.trained import MODEL, load_model


def realign_with(
    runs: Sequence[Path], out: Path, progress: Progress, *, scale: float = REALIGN_SCALE, workers: int = 0
) -> AlignSummary:
    """Align all splits of the runs' corpus with their networks, into the folder `out`.

    Of several networks the log-likelihoods are averaged frame by frame, as when they are decoded together. The tied
    states stay those of the alignment that the first run was trained on, so that `out` can replace that alignment in a
    recipe.

    Raises:
        UserError: a run is not finished; runs have different corpora or tied states; `out` holds another alignment, or
            the one that a run was trained on; too many utterances cannot be aligned.
    """
    recipes = [kept_recipe(exp) for exp in runs]
    folder = recipes[0].corpus.resolve()
    if other := [exp for exp, recipe in zip(runs, recipes, strict=True) if recipe.corpus.resolve() != folder]:
        raise UserError(f"{other[0]}: trained on another corpus than {runs[0]}. Realign with runs of one corpus.")
    corpus = load_corpus(recipes[0].corpus)
    alignments = [Alignment.load(recipe.aligned) for recipe in recipes]
    if own := [a.folder for a in alignments if a.folder.resolve() == out.resolve()]:
        raise UserError(f"{own[0]}: a run was trained on this alignment, which is kept. Name another --out.")
    models = [load_model(exp) for exp in runs]
    for exp, model, alignment in zip(runs, models, alignments, strict=True):
        if alignment.tree != alignments[0].tree or alignment.num_pdfs != len(model.prior):
            raise UserError(
                f"{exp}: its tied states are not those of {alignments[0].folder / SUMMARY}. "
                "Realign with runs whose alignments come from one tree."
            )
    members = [
        EnsembleMember(exp, 1 / len(runs), model, model.features(corpus, exp))
        for exp, model in zip(runs, models, strict=True)
    ]
    scores = ModelScores(
        lambda name: mean_of(members, name),
        made_by=" + ".join(f"{exp} ({_digest(exp / MODEL)})" for exp in runs),
    )
    return realign(
        corpus,
        members[0].store,
        alignments[0],
        scores,
        out=out,
        progress=progress,
        config=RealignConfig(
            scale=scale,
            silence_probability=recipes[0].align.silence_probability,
            failure_share=recipes[0].align.failure_share,
            workers=workers,
        ),
    )


def _digest(path: Path) -> str:
    """Return a digest of a model's file, which distinguishes models of different trainings in the same place."""
    return hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
