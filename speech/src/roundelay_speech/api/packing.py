"""Models that leave the house, from Python: pack, finetune, evaluate."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from roundelay.core.configure import Overrides, texts
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.terminal import Bar
from roundelay_speech.api.recognition import decode_recipe
from roundelay_speech.corpus.formats.recordings import RecordingOptions
from roundelay_speech.packed.card import Card
from roundelay_speech.packed.evaluate import Evaluated, Evaluating
from roundelay_speech.packed.evaluate import evaluate as evaluate_all
from roundelay_speech.packed.finetuning import Finetuned, Finetuning, Layers, SmallSteps
from roundelay_speech.packed.finetuning import finetune as finetune_model
from roundelay_speech.packed.folder import is_packed
from roundelay_speech.packed.given import model_folder
from roundelay_speech.packed.making import Packing, refuse_existing
from roundelay_speech.packed.making import pack as pack_runs
from roundelay_speech.packed.model import Model, load_model
from roundelay_speech.packed.rewording import Rewording, reword
from roundelay_speech.packed.speech_data import read_speech, read_training_speech
from roundelay_speech.recipes.known import check_overrides
from roundelay_speech.trained import check_trained

Weighted = tuple[Path | str, float]
"""A run, and the weight of its log-likelihoods."""


class TrainingOn(TypedDict, total=False):
    """Options of further training; each is the option of `roundelay finetune` of that name."""

    splits: Sequence[str]
    source: Path | str
    confidence: float
    epochs: int
    learning_rate: float
    layers: Layers
    hold: float
    seed: int


class Judged(TypedDict, total=False):
    """Options of recognition and scoring; each is the option of `roundelay evaluate` of that name."""

    splits: Sequence[str]
    source: Path | str
    workers: int
    ignore_case: bool
    clean_transcripts: bool | None
    times: bool


def pack(
    runs: Path | str | Sequence[Path | str | Weighted],
    out: Path | str,
    overrides: Overrides = (),
    *,
    words: Path | str | None = None,
    decoded: Path | str | None = None,
    licence: str = "",
    progress: Progress | None = None,
) -> Card:
    """Put trained runs, with everything that recognition needs, into the folder `out`; or a packed model with other
    words.

    Args:
        runs: a run, or several, each with a weight of its log-likelihoods if it is not 1; or a packed model.
        overrides: options of recognition that differ from the first run's recipe, `{"decode.order": 3}`.
        words: for a packed model, a file of words to add, one a line.
        decoded: a folder that `decode` left word errors in, for the same runs, weights and options; None: the runs'
            own, or they are decoded now.
        licence: licence of the model, for people; "": that of its corpus.

    Returns:
        The card: corpus, words, word errors.

    Raises:
        UserError: the folder exists; a run is not finished; runs or options that do not fit together; a word without
            pronunciation.
    """
    given, made, bar = texts(overrides), Path(out), progress or Bar()
    check_overrides(given)
    named = [_weighted(one) for one in ([runs] if isinstance(runs, str | Path) else runs)]
    if not named:
        raise UserError("pack: name a run directory, or a packed model.")
    source = model_folder(named[0][0])
    if words is not None or is_packed(source):
        if len(named) > 1 or decoded is not None:
            raise UserError("pack: a packed model is given other words alone, without further runs and --decoded.")
        return reword(source, Rewording(made, None if words is None else Path(words), given), bar)
    for exp, weight in named:
        if not weight > 0:
            raise UserError(
                f"pack {exp}:{weight:g}: weights of runs must be above 0; leave out a run that is not to count."
            )
    found = [(exp, decode_recipe(exp, given, None), weight) for exp, weight in named]
    for exp, _ in named:
        check_trained(exp)
    return pack_runs(found, Packing(made, None if decoded is None else Path(decoded), licence), bar)


def finetune(
    model: Path | str,
    data: Path | str,
    out: Path | str,
    *,
    words: Path | str | None = None,
    progress: Progress | None = None,
    **options: Unpack[TrainingOn],
) -> Finetuned:
    """Train a packed model on with a few minutes of speech, into a new one in the folder `out`.

    Args:
        data: recordings with their words, a Kaldi data directory or a prepared corpus.
        words: a file of further words to recognise; those of the transcripts are added anyway.
        options: `epochs`, `learning_rate`, `layers` and so on, as on the command line.

    Raises:
        UserError: not a packed model; the folder exists; too little speech, or speech that its transcripts do not fit;
            words without pronunciation.
    """
    named = ("epochs", "learning_rate", "layers", "hold", "seed")
    steps = SmallSteps(**{name: options[name] for name in named if name in options})  # type: ignore[literal-required]
    how = Finetuning(Path(out), None if words is None else Path(words), steps, options.get("confidence"))
    refuse_existing(how.out)
    bar, source = progress or Bar(), options.get("source")
    with tempfile.TemporaryDirectory() as converted:
        recordings = RecordingOptions(Path(converted), together=True)
        root = None if source is None else Path(source)
        speech = read_training_speech(Path(data), options.get("splits", ()), root, bar, recordings)
        return finetune_model(model_folder(model), speech, how, bar)


def evaluate(
    model: Path | str | Model,
    data: Path | str,
    out: Path | str | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[Judged],
) -> list[Evaluated]:
    """Recognise new speech with a packed model, and score it where its words are known.

    Args:
        model: the folder of a packed model, or the result of `load_model`.
        data: a prepared corpus, a Kaldi data directory or a folder of recordings.
        out: where words and scores go; None: nowhere.
        options: `splits`, `workers`, `ignore_case`, `clean_transcripts`, `times` (False saves half of the time) and so
            on, as on the command line.

    Returns:
        For each split its word errors, also by group and speaker.

    Raises:
        UserError: not a packed model; no speech in the folder; audio that cannot be used.
    """
    loaded = model if isinstance(model, Model) else load_model(Path(model))
    how = Evaluating(
        None if out is None else Path(out),
        options.get("workers", 0),
        options.get("ignore_case", False),
        options.get("times", True),
        options.get("clean_transcripts"),
    )
    bar, source = progress or Bar(), options.get("source")
    with tempfile.TemporaryDirectory() as converted:
        root, recordings = None if source is None else Path(source), RecordingOptions(Path(converted))
        speech = read_speech(Path(data), options.get("splits", ()), root, bar, recordings)
        return list(evaluate_all(loaded, speech, how, bar))


def _weighted(run: Path | str | Weighted) -> tuple[Path, float]:
    if isinstance(run, str | Path):
        return Path(run), 1.0
    return Path(run[0]), run[1]
