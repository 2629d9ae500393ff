"""Adaptation of a corpus to its speakers: models, passes over speech whose words are not known, files of features.

Training speakers' transforms come from their known words. Of all others a first pass, by mixtures of all speakers, says
which tied states the frames belong to; the transforms that fit these give a second pass, and its words better
transforms. Speaker vectors need to know speech from silence only.

Legend: T frames of all utterances, D dimensions.

Decoding with Gaussian mixtures: words of utterances, and the tied states on the way to them.

Legend: T frames of all utterances, D dimensions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from roundelay.core.checksums import file_checksum, read_checked, write_checked
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.progress import Progress
from roundelay_speech.adapt import folder as files
from roundelay_speech.adapt.estimating import (
    Workplace,
    estimators,
    grouped,
    speaker_transforms,
    speech_weights,
    transformed,
)
from roundelay_speech.adapt.fmllr import Estimate
from roundelay_speech.adapt.sat import Models, SpeakerTraining
from roundelay_speech.adapt.vectors import VectorModels, train_vectors
from roundelay_speech.data.arrays import Float32, Int32
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.hmm import HmmGraph
from roundelay_speech.decode.graphs.making import LEXICON_FILE
from roundelay_speech.decode.parallel import Decoders, Search, SearchedGraph, decoders
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.alignment import SUMMARY, Alignment
from roundelay_speech.hmm.gmm import Mixtures
from roundelay_speech.hmm.task import Labels, Task, scratch_folder
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.kaldi_io.objects import write_archive
from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.model_input import filterbanks
from roundelay_speech.prepared import TRAIN, Corpus, load_corpus
from roundelay_speech.recipes.recipe import Decoding, Recipe
from roundelay_speech.recognition.graph import decoding_graph
from roundelay_speech.recognition.loglikelihoods import FRAME_SECONDS, Source
from roundelay_speech.recognition.recognise import recognise_split
from roundelay_speech.recognition.settings import chosen_settings
from roundelay_speech.scoring.summary import Summary, write_score


@dataclass(frozen=True, eq=False)
class MixtureScores(Source):
    """A source of log-likelihoods by Gaussian mixtures."""

    mixtures: Mixtures
    frames: Float32  # (T, D)
    store: FeatureStore

    def of(self, utterances: Sequence[Utterance]) -> Iterator[tuple[str, Float32]]:
        for utterance in utterances:
            first, length = self.store.span(utterance.id)
            yield utterance.id, self.mixtures.loglikes(self.frames[first : first + length])

    def seconds(self, utterances: Sequence[Utterance], frames: int) -> float:
        return frames * FRAME_SECONDS

    def told(self) -> dict[str, Any]:
        return {"gaussians": self.mixtures.components}


@dataclass(frozen=True, eq=False)
class MixtureDecoder:
    """A decoder of a corpus's splits, by one graph with any mixtures of its tied states."""

    run: Decoders
    columns: Columns
    words: frozenset[str]
    corpus: Corpus
    config: Decoding
    progress: Progress

    def settings(self, scores: MixtureScores, known: Search | None) -> Search:
        """Return the search with the best settings on dev; `known`, if they were found before."""
        if known is not None:
            return known
        return chosen_settings(self.run, scores, self.corpus, self.config, self.progress)[0]

    def decode(
        self, scores: MixtureScores, search: Search, splits: Sequence[str], pdfs: Int32, out: Path
    ) -> list[Summary]:
        """Decode splits and write their scores into folders of `out`. Into `pdfs` (T,) the pdf of every frame on the
        best path is written, -1 if there is no path."""
        found = []
        for split in splits:
            utterances = self.corpus.splits[split]
            graph = SearchedGraph(self.run, self.columns, set(self.words))
            result, batch = recognise_split(graph, scores, utterances, split, search, self.progress)
            write_score(out / split, result.summary, result.subsets, utterances)
            for name, hypothesis in batch.hypotheses.items():
                first, length = scores.store.span(name)
                pdfs[first : first + length] = hypothesis.pdfs if len(hypothesis.pdfs) == length else -1
            found.append(result.summary)
        return found


@contextmanager
def mixture_decoder(
    recipe: Recipe, own: Corpus, corpus: Corpus, tying: Tying, progress: Progress
) -> Iterator[MixtureDecoder]:
    """Load the graph of a recipe's words and language model, those of the corpus `own`, to decode `corpus`. Raises
    UserError: texts, lexicon and tied states do not fit together."""
    config = replace(recipe.decode, graph=HmmGraph(), nbest=0, lattice=False, ctm=False)
    columns = config.graph.columns(tying)
    graph = decoding_graph(replace(recipe, decode=config), own, columns, progress, "")
    words = frozenset(read_lexicon(graph / LEXICON_FILE).words)
    with decoders(graph, config.workers) as run:
        yield MixtureDecoder(run, columns, words, corpus, config, progress)


def splits_to_decode(corpus: Corpus, known: bool) -> list[str]:
    """Return the splits whose words are to be recognised: all but the training split, or all if its words are not
    `known`."""
    return [split for split in corpus.splits if split != TRAIN or not known]


def settings_told(search: Search) -> dict[str, float]:
    """Return the settings of a search in the form of adaptation.json."""
    return {
        "scale": search.scale,
        "word_cost": search.word_cost or 0.0,
        "beam": search.beam,
        "max_active": search.max_active,
    }


def settings_kept(told: Mapping[str, float]) -> Search:
    """Return the search with settings from `settings_told`."""
    return Search(told["scale"], told["beam"], int(told["max_active"]), told["word_cost"])


# Options of decoding that change no pass.
_NO_MATTER = (
    *("graph", "splits", "workers", "nbest", "lattice", "lattice_beam", "ctm"),
    *("rescore", "rescore_order", "rescore_cutoffs"),
)


@dataclass(frozen=True)
class Adapted:
    """The result of an adaptation: word errors pass by pass, settings, and number of speakers."""

    folder: Path
    summaries: Mapping[str, Sequence[str]]  # word errors of each split, pass by pass; the first is not adapted
    settings: Sequence[Mapping[str, float]]  # of the search in the first pass, and in those after it
    speakers: int  # transforms
    identities: Sequence[str]  # those of them that are the identity, for want of speech
    again: bool = False  # it was there already

    @classmethod
    def read(cls, folder: Path) -> "Adapted":
        """Return the finished adaptation in a folder.

        Raises:
            UserError: the folder has no finished adaptation, or it is damaged.
        """
        if not (folder / files.DONE).is_file():
            raise UserError(f"{folder}: no finished adaptation here (no {files.DONE}). Run `roundelay adapt` first.")
        told = read_checked(folder / files.DONE, f"Delete {folder} and run `roundelay adapt` again.", skip=files.LARGE)
        return cls(folder, told["summaries"], told["settings"], told["speakers"], told["identities"], again=True)


def adapt(recipe: Recipe, progress: Progress, *, of: Path | None = None, out: Path | None = None) -> Adapted:
    """Adapt a recipe's corpus, or another corpus by the models of the recipe's, into a folder.

    Args:
        of: another prepared corpus, with other speakers, whose words are not known.
        out: folder of the other corpus's adaptation.

    Raises:
        UserError: the folder holds another adaptation; there is no alignment, or it belongs to another corpus; for
            another corpus, the recipe's own is not adapted yet, or its frames are others.
    """
    own = load_corpus(recipe.corpus)
    corpus = own if of is None else load_corpus(of)
    store, alignment = corpus.features(), Alignment.load(recipe.aligned)
    if recipe.adapt.ivector_dimension:
        store.filterbank()  # vectors are made from one, hours later
    folder = recipe.adaptation_folder
    earlier: Adapted | None = None
    if of is None:
        if out is not None:
            raise UserError("--out is for --corpus; the recipe's `adaptation` names the folder of its own corpus.")
        if len(alignment.pdf) != len(store.array):
            raise UserError(
                f"{alignment.folder}: an alignment of another corpus than {corpus.folder}. Align this one first."
            )
    else:
        if out is None or out.resolve() == folder.resolve():
            raise UserError("Another corpus needs a folder of its own for its transforms and vectors: give --out DIR.")
        _check_frames(store, own.features(), corpus, own)
        earlier, folder = Adapted.read(folder), out
        files.there_already(earlier.folder, files.MODELS, {"alignment": file_checksum(alignment.folder / SUMMARY)})
        if recipe.adapt.ivector_dimension:
            files.load_vectors(earlier.folder)  # before hours of decoding
    stage = _Adaptation(recipe, own, corpus, store, alignment, folder, earlier)
    made_from = stage.made_from()
    if files.there_already(folder, files.DONE, made_from):
        return Adapted.read(folder)
    if recipe.decode.rescored:
        name = "rescore_order" if recipe.decode.rescore is None else "rescore"
        nothing = 0 if recipe.decode.rescore is None else "null"
        raise UserError(
            f"decode.{name}={getattr(recipe.decode, name)}: the passes of an adaptation need the tied states of the "
            "words that the graph's own model finds, and rescore nothing. Leave it out here: "
            f"decode.{name}={nothing}."
        )
    with scratch_folder(folder) as scratch, estimators(recipe.adapt.workers) as run:
        told, written = stage.make(Workplace(recipe.adapt, run, scratch, progress))
    write_checked(folder / files.DONE, {"made_from": made_from, **told}, written)
    return replace(Adapted.read(folder), again=False)


def _check_frames(store: FeatureStore, own: FeatureStore, corpus: Corpus, known: Corpus) -> None:
    here, there = frames_made(store), frames_made(own)
    if here != there:
        odd = [f"{key} {here[key]}, not {there[key]}" for key in here if here[key] != there[key]]
        raise UserError(
            f"{corpus.folder}: its features are not those of {known.folder}: {'; '.join(odd)}. Prepare it with the "
            "same filterbank and sampling rate."
        )


def frames_made(store: FeatureStore) -> dict[str, Any]:
    """Return the facts of a store's frames that decide its cepstra."""
    return {
        "sampling rate": store.sampling_rate,
        "frame shift": store.frame_shift,
        "filterbank": filterbanks(store.config)[:1],
    }


@dataclass(frozen=True, eq=False)
class _Adaptation:
    """An adaptation under way, of a corpus into `folder`."""

    recipe: Recipe
    own: Corpus  # the corpus that models, words and language model come from
    corpus: Corpus
    store: FeatureStore
    alignment: Alignment
    folder: Path
    earlier: Adapted | None  # the adaptation of that corpus, where this is another

    @property
    def _models_folder(self) -> Path:
        return self.folder if self.earlier is None else self.earlier.folder

    def made_from(self, later: bool = True) -> dict[str, Any]:
        """Return the inputs and options that decide the result, by name; without `later`, only those of the models for
        transforms."""
        config, corpus = self.recipe.adapt.deciding(), self.corpus
        said = [[split, u.id, u.speaker, *self.store.span(u.id)] for split, some in corpus.splits.items() for u in some]
        found: dict[str, Any] = {
            "utterances and speakers": files.digest(said),
            "features": files.digest([frames_made(self.store)]),
            "alignment": file_checksum(self.alignment.folder / SUMMARY),
            **{f"align.{key}": value for key, value in self.recipe.align.deciding().items()},
        }
        late = [key for key in config if key.startswith("ivector") or key == "passes"]
        found |= {f"adapt.{key}": value for key, value in config.items() if later or key not in late}
        if later:
            decode = {key: value for key, value in plain(self.recipe.decode).items() if key not in _NO_MATTER}
            found["words, language model and search"] = files.digest([decode])
        if self.earlier is not None:
            found["models"] = files.identity(self.earlier.folder, files.MODELS)
        return found

    @property
    def training(self) -> list[Utterance]:
        """Utterances whose words are known."""
        return self.corpus.splits[TRAIN] if self.earlier is None else []

    @property
    def unknown(self) -> list[str]:
        """Splits whose words are to be recognised."""
        return splits_to_decode(self.corpus, known=self.earlier is None)

    def make(self, place: Workplace) -> tuple[dict[str, Any], list[str]]:
        """Do all passes; return the facts for adaptation.json, and the files whose checksums it has."""
        models, pdfs = self._models(place)
        mapped, pdfs, told = self._transforms(place, models, pdfs)
        written = [self._write(files.FMLLR, ((u.id, mapped[slice(*self._rows(u))]) for u in self._every()))]
        vectors: dict[str, Float32] = {}
        if place.config.ivector_dimension:
            vectors = self._vectors(place, pdfs)
            written.append(self._write(files.IVECTOR, ((name, one[None]) for name, one in vectors.items())))
        write_text(
            self.folder / files.FEATURES_FILE, yaml.safe_dump({"parts": self._parts(bool(vectors))}, sort_keys=False)
        )
        return told, [name for some in written for name in some] + [files.FEATURES_FILE]

    def _every(self) -> list[Utterance]:
        return [u for some in self.corpus.splits.values() for u in some]

    def _rows(self, utterance: Utterance) -> tuple[int, int]:
        first, frames = self.store.span(utterance.id)
        return first, first + frames

    def _models(self, place: Workplace) -> tuple[Models, Int32]:
        """Train the models for transforms, unless they exist; return them and the pdf (T,) of frames with known words,
        -1 for others."""
        if self.earlier is not None:
            return files.load_models(self.earlier.folder)[0], np.full(len(self.store.array), -1, np.int32)
        made_from = self.made_from(later=False)
        if files.there_already(self.folder, files.MODELS, made_from):
            return files.load_models(self.folder)
        labels = Labels.empty(len(self.store.array))
        for utterance in self.training:
            rows, known = slice(*self._rows(utterance)), self.alignment
            labels.pdf[rows], labels.phones[rows] = known.pdf[rows], known.phones[rows]
            labels.states[rows] = known.states[rows]
        training = SpeakerTraining(
            Task.of(self.corpus, self.store, "adaptation", {}),
            self.alignment.tree,
            self.corpus.alignment_lexicon.in_phones(self.alignment.tying.phones),
            grouped(self.training, self.store, place.config.per),
            labels,
            self.recipe.align,
            [],
        )
        models = training.models(place, self.store)
        files.save_models(self.folder, models, labels.pdf, made_from, training.log)
        return models, labels.pdf

    def _transforms(self, place: Workplace, models: Models, pdfs: Int32) -> tuple[Float32, Int32, dict[str, Any]]:
        """Estimate the transforms; return the transformed frames (T, D) of all utterances, the pdf of every frame, and
        facts for adaptation.json."""
        config, tying, store = place.config, self.alignment.tying, self.store
        frames, pdfs = models.frames(store), pdfs.copy()
        known = grouped(self.training, store, config.per)
        others = grouped([u for split in self.unknown for u in self.corpus.splits[split]], store, config.per)
        own: dict[str, Estimate] = {}
        if known:
            what = "transforms of training speakers"
            own = speaker_transforms(place, frames, (models.adapted, pdfs, tying), known, what)
        summaries: dict[str, list[Summary]] = {split: [] for split in self.unknown}
        kept = [] if self.earlier is None else [settings_kept(one) for one in self.earlier.settings]
        settings: list[Search] = []
        scores, mapped, found = MixtureScores(models.independent, frames, store), frames, dict[str, Estimate]()
        with mixture_decoder(self.recipe, self.own, self.corpus, tying, place.progress) as decoder:
            for number in range(config.passes + 1):
                if number:
                    what = f"transforms for pass {number + 1}"
                    found = speaker_transforms(place, frames, (models.adapted, pdfs, tying), others, what)
                    mapped = transformed(frames, (known, own), (others, found))
                    scores = MixtureScores(models.adapted, mapped, store)
                if number < 2:  # later passes have the second one's
                    settings.append(decoder.settings(scores, kept[number] if kept else None))
                heard = decoder.decode(scores, settings[-1], self.unknown, pdfs, self.folder / f"pass{number + 1}")
                for split, one in zip(self.unknown, heard, strict=True):
                    summaries[split].append(one)
        told = {
            "version": files.ADAPTATION_VERSION,
            "summaries": {split: [str(one) for one in some] for split, some in summaries.items()},
            "settings": [settings_told(search) for search in settings],
            "speakers": len(own) + len(found),
            "identities": sorted(name for name, one in [*own.items(), *found.items()] if not one.objective),
        }
        return mapped, pdfs, told

    def _vectors(self, place: Workplace, pdfs: Int32) -> dict[str, Float32]:
        """Return the vector of every utterance, its speaker's or its own."""
        config, store = place.config, self.store
        weights = speech_weights(pdfs, self.alignment.tying, 0.0)
        models = self._vector_models(place, weights)
        others = [u for split in self.unknown for u in self.corpus.splits[split]]
        found: dict[str, Float32] = {}
        for some, unit in ((self.training, config.ivector_train), (others, config.per)):
            of = models.vectors(place, store, weights, grouped(some, store, unit)) if some else {}
            found |= {u.id: of[u.speaker if unit == "speaker" else u.id] for u in some}
        return {u.id: found[u.id] for u in self._every()}

    def _vector_models(self, place: Workplace, weights: npt.NDArray[np.float64]) -> VectorModels:
        if self.earlier is not None:
            return files.load_vectors(self.earlier.folder)
        options = {f"adapt.{k}": v for k, v in place.config.deciding().items() if k.startswith("ivector")}
        made_from = self.made_from(later=False) | options
        if files.there_already(self.folder, files.VECTORS, made_from):
            return files.load_vectors(self.folder)
        models = train_vectors(place, self.store, weights, grouped(self.training, self.store, "utterance"))
        files.save_vectors(self.folder, models, made_from)
        return models

    def _write(self, name: str, objects: Iterable[tuple[str, Float32]]) -> list[str]:
        """Write an archive and its script file, with a relative path so that the folder can be moved; return their
        names."""
        places = write_archive(self.folder / f"{name}.ark", objects)
        lines = [f"{key} {Path(place).name}\n" for key, place in places.items()]
        write_text(self.folder / f"{name}.scp", "".join(lines))
        return [f"{name}.ark", f"{name}.scp"]

    def _parts(self, vectors: bool) -> list[dict[str, Any]]:
        """Return the parts of features in the form that `roundelay features` reads."""
        part = {"kind": "external", "name": files.FMLLR, "source": str(self.folder / f"{files.FMLLR}.scp")}
        parts: list[dict[str, Any]] = [part | {"made_by": files.identity(self._models_folder, files.MODELS)}]
        parts += [
            {"kind": "fbank", "name": "logmel", "fbank": plain(options), "deltas": 2, "normalise": "speaker"}
            for options in filterbanks(self.store.config)[:1]
        ]
        if vectors:
            part = {"kind": "external", "name": files.IVECTOR, "source": str(self.folder / f"{files.IVECTOR}.scp")}
            made_by = files.identity(self._models_folder, files.VECTORS)
            parts.append(part | {"every": 0, "spliced": False, "made_by": made_by})
        return parts
