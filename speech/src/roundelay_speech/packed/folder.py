"""The folder of a packed model: its files, and the one that describes them.

MODEL/packed.json       format version, networks and their weights, settings of the search, checksums; written last
MODEL/acoustic-1/       a network, as its run left it: model.safetensors, model.json; acoustic-2/ and so on
MODEL/tree.json         tied states; a model whose columns are units has none
MODEL/HCLG.fst ...      the decoding graph with its symbols (see speech/decode/graphs/graph.py)
MODEL/lm.arpa.gz        the grammar that the graph was made of
MODEL/lexicon.txt       the words that can be recognised; dropped.txt and guessed.txt beside it
MODEL/dictionary.txt    all pronunciations that were known when the graph was made
MODEL/g2p.json.gz       pronunciations by spelling, if the dictionary was large enough to learn them from
MODEL/rescore           a large language model for a second pass, if there was one
MODEL/projection.npz    where networks hear transforms of speakers (adapting.py), what these are estimated by;
                        independent.npz, adapted.npz beside it
MODEL/evidence.json     measures of words that were said, and how true confidences are; none of earlier versions
MODEL/card.json         corpus, runs, word errors, licence: for programs; README.md, confidences.svg: for people
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from roundelay.core.checksums import Damaged, check_file, file_checksum, read_sums, write_checked
from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.folders import PACKED, check_packed
from roundelay_speech.decode.alternatives import MOST_STRINGS, WORDS_ALONE, Wishes
from roundelay_speech.decode.evidence import Evidence
from roundelay_speech.decode.parallel import Search
from roundelay_speech.features.parts import FeatureConfig
from roundelay_speech.packed.spread import SpeakerSpread
from roundelay_speech.packed.upper import weights_of
from roundelay_speech.search.beam import FEWEST_ACTIVE
from roundelay_speech.trained import MODEL_META

CARD, README = "card.json", "README.md"
EVIDENCE_FILE = "evidence.json"
DICTIONARY, G2P, RESCORE = "dictionary.txt", "g2p.json.gz", "rescore"
PACKED_VERSION = 1
ADAPTING_VERSION = 2  # of models with transforms of speakers, which earlier versions cannot hear
REMEDY = "Copy the folder again from where it was whole, or pack it again with `roundelay pack`."


@dataclass(frozen=True)
class PackedNetwork:
    """One network of a packed model."""

    folder: str  # of its files, inside the model's
    weight: float  # of its log-likelihoods; the weights of all networks sum to 1
    features: FeatureConfig  # of the features computed for it
    # usual_mean, usual_std: of each feature over the frames of one speaker, on average over the training speakers.
    usual_mean: tuple[float, ...]
    usual_std: tuple[float, ...]
    # the map that tells bands which a recording lacks (upper.py), row by row, numbers with blanks between them (JSON of
    # numbers takes three times the room); empty where an earlier version packed it, or it hears nothing above what
    # telephones let through, or more than one filterbank.
    upper: tuple[str, ...] = ()
    # how the training speakers differ (spread.py), row by row; empty where an earlier version packed it, or there were
    # few of them.
    spread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        within("weight", self.weight, 0.0, 1e3)
        for mean in self.usual_mean:
            within("usual_mean", mean, -1e6, 1e6)
        for deviation in self.usual_std:
            within("usual_std", deviation, 0.0, 1e6)
        weights_of(self.upper)
        if self.spread:
            SpeakerSpread.of_rows(self.spread)
        for part in self.features.filterbanks:
            within("num_bins", part.fbank.num_bins, 1, 1000)
            within("frame_length_ms", part.fbank.frame_length_ms, 1, 1000)
            within("frame_shift_ms", part.fbank.frame_shift_ms, 1, 1000)
            within("preemphasis", part.fbank.preemphasis, -1, 1)


@dataclass(frozen=True)
class PackedPass:
    """The settings of a search for words, the best on held-out speech; see `Search`."""

    scale: float
    word_cost: float
    beam: float
    max_active: int

    def __post_init__(self) -> None:
        within("scale", self.scale, 1e-4, 1e4)
        within("word_cost", self.word_cost, -1e3, 1e3)
        within("beam", self.beam, 1e-3, 1e3)
        within("max_active", self.max_active, FEWEST_ACTIVE + 1, 10_000_000)

    def decoding(self) -> Search:
        """Return the search with these settings for the best words alone."""
        return Search(self.scale, self.beam, self.max_active, self.word_cost)


@dataclass(frozen=True)
class PackedAdaptation:
    """The way in which transforms of speakers are estimated (adapting.py)."""

    passes: tuple[PackedPass, ...]  # searches by mixtures before the networks', the first of them not adapted
    em_rounds: int  # of EM for each transform
    min_frames: float  # frames of speech below which a speaker keeps the identity
    silence_weight: float  # of a frame of silence, where one of speech has 1
    usual_std: tuple[float, ...]  # deviations of cepstra, on average over the training speakers

    def __post_init__(self) -> None:
        within("number of passes", len(self.passes), 1, 100)
        within("em_rounds", self.em_rounds, 1, 1000)
        within("min_frames", self.min_frames, 0, 1e9)
        within("silence_weight", self.silence_weight, 0, 1)
        for deviation in self.usual_std:
            within("usual_std", deviation, 0.0, 1e6)


@dataclass(frozen=True)
class PackedSearch(PackedPass):
    """The settings of a packed model's search."""

    lattice_beam: float
    silence_probability: float
    blank_cost: float = 0.0  # of every blank, in nats, where columns are units and a blank

    def __post_init__(self) -> None:
        super().__post_init__()
        within("lattice_beam", self.lattice_beam, 1e-3, 1e3)
        within("silence_probability", self.silence_probability, 1e-9, 1 - 1e-9)
        within("blank_cost", self.blank_cost, -1e3, 1e3)

    def search(self, times: bool, asked: Wishes = WORDS_ALONE) -> Search:
        """Return the search with these settings, with times and confidences of words if `times`, and with other
        wishes."""
        return replace(
            self.decoding(),
            nbest=MOST_STRINGS if asked.strings else 0,  # posteriors are summed over as many as confidences are
            times=times,
            lattice_beam=self.lattice_beam,
            favoured=asked.favoured,
            bonus=asked.bonus,
        )


@dataclass(frozen=True)
class PackedModel:
    """The description of a packed model, content of packed.json."""

    sampling_rate: int  # of the audio it hears, in Hz
    networks: tuple[PackedNetwork, ...]
    search: PackedSearch
    made_by: str
    rescored: bool = False  # whether a second pass with the language model in the file `rescore` belongs to it
    silence: str = ""  # the name that its lexica have for silence, where columns are units
    # checksums of files in folders below, by path; those beside packed.json are in its `checksums`.
    below: Mapping[str, str] = field(default_factory=dict)
    version: int = PACKED_VERSION
    # whether the transcripts of its corpus were rewritten in the dictionary's words (`prepare --clean-transcripts`), so
    # that those it is compared with must be too.
    cleaned: bool = False
    adaptation: PackedAdaptation | None = None  # where networks hear transforms of speakers

    def __post_init__(self) -> None:
        within("sampling_rate", self.sampling_rate, 1000, 192_000)


def within(name: str, value: float, least: float, most: float) -> None:
    """Check that a setting called `name` is from `least` to `most`.

    Raises:
        UserError: `value` is less or more, or no number.
    """
    if not least <= value <= most:
        raise UserError(f"{name} is {value:g}: expected {least:g} to {most:g}.")


def is_packed(folder: Path) -> bool:
    """Return True if `folder` is a packed model."""
    return (folder / PACKED).is_file()


def write_packed(folder: Path, model: PackedModel) -> None:
    """Write packed.json, with the checksums of all files in the folder."""
    beside = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != PACKED)
    write_checked(folder / PACKED, plain(model), beside)


def checksum_below(folder: Path, network: str) -> dict[str, str]:
    """Return the checksum of a network's JSON, which has that of its parameters, by its path below `folder`."""
    return {f"{network}/{MODEL_META}": file_checksum(folder / network / MODEL_META)}


def read_packed(folder: Path) -> PackedModel:
    """Read packed.json, and check all files of the folder by their checksums, except networks' parameters, which are
    checked when they are read.

    Raises:
        UserError: not a packed model, or one of a later version; a file is missing or damaged (names it).
    """
    check_packed(folder)
    path = folder / PACKED
    told, sums = read_sums(path, REMEDY)
    version = told.get("version")
    if version not in (PACKED_VERSION, ADAPTING_VERSION):
        raise UserError(
            f"{path}: a packed model of format {version!r}, made by {told.get('made_by', 'another version')}; this "
            f"version of Roundelay reads formats {PACKED_VERSION} and {ADAPTING_VERSION}. Install a version that reads "
            "it, or pack the runs again with this one."
        )
    if not sums:
        raise Damaged(f"{path}: damaged: it has no checksums. {REMEDY}")
    try:
        model = build(PackedModel, told)
    except UserError as error:
        raise UserError(f"{path}: {error} {REMEDY}") from None
    for name, expected in sums.items():
        check_file(folder / name, expected, PACKED, REMEDY)
    for network in model.networks:
        name = f"{network.folder}/{MODEL_META}"
        check_file(folder / name, model.below.get(name, ""), PACKED, REMEDY)
    return model


def read_evidence(folder: Path) -> Evidence | None:
    """Read the evidence of words that were said; return None if an earlier version packed the model.

    Raises:
        UserError: the file is not one that `roundelay pack` writes.
    """
    path = folder / EVIDENCE_FILE
    return build(Evidence, read_json(path), str(path)) if path.is_file() else None
