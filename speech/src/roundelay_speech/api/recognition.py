"""Recognition from Python: decode."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from roundelay.core.configure import Overrides, texts
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.terminal import Bar
from roundelay_speech.corpus.build import prepare_kaldi, prepare_recordings
from roundelay_speech.corpus.formats.recordings import has_recordings
from roundelay_speech.corpus.options import Preparation, PrepareOptions
from roundelay_speech.packed.adapted_runs import config_of
from roundelay_speech.packed.speech_data import WAV, root_of
from roundelay_speech.prepared import CORPUS, load_corpus
from roundelay_speech.recipes.known import check_overrides
from roundelay_speech.recipes.recipe import Recipe, kept_recipe
from roundelay_speech.recognition.recognise import Recognised, recognise
from roundelay_speech.trained import check_trained


def decode(
    exp: Path | str,
    overrides: Overrides = (),
    *,
    others: Iterable[tuple[Path | str, float]] = (),
    corpus: Path | str | None = None,
    scores: Path | str | None = None,
    out: Path | str | None = None,
    progress: Progress | None = None,
) -> list[Recognised]:
    """Recognise the held-out splits with the model of the run in `exp`, and score them; everything is written into
    `out`/decode, and without `out` into the run, whose results.json then has the word error rates.

    Args:
        overrides: options of recognition that differ from the run's recipe, `{"decode.beam": 13}`.
        others: further runs with weights (that of `exp` is 1), whose log-likelihoods are averaged; needs `out`.
        corpus: other speech, with or without transcripts, which is recognised: a prepared corpus, a Kaldi data
            directory or a folder of recordings. Needs `out`, where speech that is not prepared is (`out`/data), unless
            it is a prepared corpus and the run's own is not found: then this one stands for it.
        scores: log-likelihoods to decode instead of the model's; needs `out`.

    Raises:
        UserError: not a finished run; an option that is unknown or not of recognition; options that do not fit
            together.
    """
    given, of = texts(overrides), _path(corpus)
    check_overrides(given)
    if of is not None:
        of = prepared_speech(Path(exp), of, _path(out), progress or Bar())
    recipe = decode_recipe(Path(exp), given, of)
    beside = [(Path(run), decode_recipe(Path(run), given, of), weight) for run, weight in others]
    if scores is None:
        for path in (Path(exp), *(path for path, *_ in beside)):
            check_trained(path)
    if of is not None and of.resolve() == recipe.corpus.resolve():
        of = None
    return recognise(Path(exp), recipe, progress or Bar(), others=beside, out=_path(out), of=of, scores=_path(scores))


def decode_recipe(exp: Path, overrides: Sequence[str], corpus: Path | None) -> Recipe:
    """Return the recipe that the run in `exp` keeps, for recognition with these overrides of its section `decode`.

    Raises:
        UserError: an override is of another section; `exp` is no run directory; `corpus` has nothing to recognise.
    """
    for assignment in overrides:
        key = assignment.partition("=")[0].strip()
        if not key.startswith("decode."):
            hint = " To decode another corpus, give --corpus DIR." if key == "corpus" else ""
            raise UserError(f"decode --set {assignment}: only decode.KEY=VALUE can be set.{hint}")
    recipe = kept_recipe(exp, overrides, corpus)
    if corpus is None or any(text.partition("=")[0].strip() == "decode.splits" for text in overrides):
        return recipe
    splits = tuple(load_corpus(corpus).held_out)
    if not splits:
        raise UserError(f"{corpus}: no split but train. Name what to decode: --split train")
    return replace(recipe, decode=replace(recipe.decode, splits=splits))


def prepared_speech(exp: Path, data: Path, out: Path | None, progress: Progress) -> Path:
    """Return the prepared corpus in `data`; from a Kaldi data directory or a folder of recordings, prepare one in
    `out`/data, with the features that the run in `exp` was trained on.

    Raises:
        UserError: no speech in the folder; no `out` for speech that is not prepared; files that cannot be used.
    """
    if (data / CORPUS).is_file() or not data.is_dir():
        return data  # which its loader looks at
    is_kaldi = (data / WAV).is_file()
    if not is_kaldi and not has_recordings(data):
        raise UserError(
            f"{data}: neither {CORPUS} nor {WAV} is in it, nor a recording. Give a prepared corpus, a Kaldi data "
            "directory or a folder of recordings."
        )
    if out is None:
        raise UserError(f"{data} is not prepared; it needs a folder for that, and for the results: give --out DIR.")
    own = load_corpus(kept_recipe(exp).corpus)
    store = own.features()
    options = PrepareOptions(
        features=config_of(store),
        rate=store.sampling_rate,
        unlabelled=True,
        clean_transcripts=own.cleaned,  # written as the transcripts that the run was trained on
        dictionary=own.alignment_lexicon,
    )
    preparation = Preparation(out / "data", data.resolve().name, options=options)
    if is_kaldi:
        splits = {data.resolve().name: str(data.resolve())}
        prepare_kaldi(root_of(data), None, splits, preparation, progress)
    else:
        prepare_recordings(data, None, {}, preparation, progress)
    return preparation.data


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)
