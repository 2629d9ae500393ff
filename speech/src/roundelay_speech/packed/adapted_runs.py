"""Runs whose networks hear transforms of speakers, and what a packed model takes along of the adaptation that made
them."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.streams import stream
from roundelay_speech.adapt.folder import (
    ADAPTED,
    DONE,
    FMLLR,
    INDEPENDENT,
    MODELS,
    PROJECTION,
    digest,
    identity,
    load_models,
    read_models,
)
from roundelay_speech.features.fbank import FbankConfig
from roundelay_speech.features.parts import FeatureConfig, only_fbank
from roundelay_speech.features.store import FeatureStore, SpeakerStats, SpeakerSums
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.gmm import cepstral_matrix
from roundelay_speech.packed.folder import PackedAdaptation, PackedPass
from roundelay_speech.packed.spread import UTTERANCES_FITTED
from roundelay_speech.prepared import TRAIN, load_corpus
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.recognition.adaptation import Adapted, frames_made
from roundelay_speech.recognition.loglikelihoods import EnsembleMember

_SAME_STATES = 0.5  # of the frames have the same state in alignments of one tree, at least; by chance a third


@dataclass(frozen=True)
class AdaptationOfRuns:
    """An adaptation whose transforms networks hear."""

    folder: Path  # of its models
    how: PackedAdaptation

    def copied(self, out: Path) -> dict[str, int]:
        """Copy the models into a folder; return the number of their Gaussians, and of their bytes."""
        names, models = (PROJECTION, INDEPENDENT, ADAPTED), read_models(self.folder)
        for name in names:
            shutil.copyfile(self.folder / name, out / name)
        gaussians = models.independent.components + models.adapted.components
        return {"gaussians": gaussians, "bytes": sum((out / name).stat().st_size for name in names)}


def adaptation_of(members: Sequence[EnsembleMember], recipes: Sequence[Recipe]) -> AdaptationOfRuns | None:
    """Return the adaptation whose transforms the networks of runs hear; None if they hear none.

    Raises:
        UserError: a network hears vectors of speakers, or matrices from elsewhere, or transforms that a packed model
            cannot estimate; or networks hear those of several adaptations.
    """
    found: AdaptationOfRuns | None = None
    for member, recipe in zip(members, recipes, strict=True):
        for part in config_of(member.store).externals:
            folder = part.source.parent
            made = part.source.name == f"{FMLLR}.scp" and (folder / MODELS).is_file()
            if not made or identity(folder, MODELS) != part.made_by:
                raise UserError(
                    f"{member.exp}: its network hears features that are not computed from audio alone ({part.name}, "
                    f"from {part.source}), and no transforms by the models that `roundelay adapt` leaves beside them. "
                    "A packed model has to hear any audio: pack a run that was trained on filterbanks, or on them and "
                    "on such transforms."
                )
            if found is not None and identity(found.folder, MODELS) != part.made_by:
                raise UserError(f"Runs hear transforms by several models ({found.folder}, {folder}): pack runs of one.")
            if found is None:
                found = AdaptationOfRuns(folder, _packed(folder, member, recipe))
    return found


def _packed(folder: Path, member: EnsembleMember, recipe: Recipe) -> PackedAdaptation:
    """Return how transforms of the models in `folder` are estimated, for a run that hears them."""
    adapted, made_from = Adapted.read(folder), read_json(folder / DONE)["made_from"]
    if made_from["adapt.per"] != "speaker":
        raise UserError(
            f"{folder}: made with adapt.per=utterance; a packed model estimates a transform of each speaker or "
            "recording. Adapt and train with adapt.per=speaker."
        )
    if made_from["features"] != digest([frames_made(member.store)]):
        raise UserError(f"{member.exp}: its first filterbank is not the one that {folder} was adapted with.")
    _check_states(folder, member, recipe)
    searches = [
        PackedPass(one["scale"], one["word_cost"], one["beam"], int(one["max_active"])) for one in adapted.settings
    ]
    return PackedAdaptation(
        tuple(searches[min(number, 1)] for number in range(made_from["adapt.passes"])),
        made_from["adapt.em_rounds"],
        made_from["adapt.min_frames"],
        made_from["adapt.silence_weight"],
        _usual_deviations(of_audio(member.store), recipe),
    )


def _check_states(folder: Path, member: EnsembleMember, recipe: Recipe) -> None:
    """Raise a UserError unless a run's columns are the tied states of the mixtures in `folder`."""
    if not recipe.unaligned:
        states, labels = Alignment.load(recipe.aligned).pdf, load_models(folder)[1]
        known = labels >= 0
        if len(states) == len(labels) and (states[known] == labels[known]).mean() >= _SAME_STATES:
            return
    raise UserError(
        f"{member.exp}: the mixtures in {folder}, by which transforms are estimated, are of other columns than its "
        "network, and a packed model has one graph for both. Pack a run on the alignment that was adapted with, or on "
        "one that networks made of it (`roundelay realign`)."
    )


def _usual_deviations(store: FeatureStore, recipe: Recipe) -> tuple[float, ...]:
    """Return the deviations (C,) of cepstra of an average training speaker: means of their variances, over frames."""
    known = [u for u in load_corpus(recipe.corpus).splits[TRAIN] if not u.distortion]
    columns, sums = store.filterbank(), SpeakerSums()
    turn = cepstral_matrix(columns.stop - columns.start)
    for n in stream(0, "usual cepstra").permutation(len(known))[:UTTERANCES_FITTED]:
        sums.add(known[n].speaker, store.get(known[n].id)[:, columns] @ turn)
    found = sums.finish()
    return tuple(np.sqrt(found.frames / found.frames.sum() @ np.square(found.std.astype(np.float64))).tolist())


def of_audio(store: FeatureStore) -> FeatureStore:
    """Return a store with those features alone that are computed from audio."""
    config = config_of(store)
    if not config.externals:
        return store
    parts = tuple(part for part in store.parts if part.filterbank)
    columns = np.flatnonzero(np.repeat([p.filterbank for p in store.parts], [p.width for p in store.parts]))
    own = slice(columns[0], columns[-1] + 1) if np.ptp(columns) + 1 == len(columns) else columns  # a view, if it can be
    speakers = store.speakers
    return replace(
        store,
        array=store.array[:, own],
        speakers=SpeakerStats(speakers.names, speakers.mean[:, own], speakers.std[:, own], speakers.frames),
        config=plain(replace(config, parts=tuple(config.filterbanks))),
        parts=parts,
    )


def config_of(store: FeatureStore) -> FeatureConfig:
    """Return the configuration by which a store's features were computed."""
    told = dict(store.config)
    if "num_bins" in told:  # stores of version 1 had one filterbank, and its options only
        return only_fbank(build(FbankConfig, told, str(store.folder)))
    return build(FeatureConfig, told, str(store.folder))
