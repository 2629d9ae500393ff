"""Recognition from Python: decode."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from roundelay.api.recipes import Overrides, texts
from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.core.progress import Progress
from roundelay.recipes.kept import kept_recipe
from roundelay.recipes.known import check_overrides
from roundelay.recipes.recipe import Recipe
from roundelay.recognition.recognise import Recognised, recognise
from roundelay.speech.prepared import TRAIN, load_corpus
from roundelay.speech.trained import check_trained
from roundelay.terminal import Bar


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
        others: more runs and their weights beside the 1 of `exp`, whose log-likelihoods are averaged; needs `out`.
        corpus: another prepared corpus, whose splits are recognised; needs `out`, unless the run's own is not found,
            and this one stands for it.
        scores: log-likelihoods to decode instead of the model's; needs `out`.

    Raises:
        UserError: not a finished run; an option that is unknown or not of recognition; what does not fit together.
    """
    need("speech", "decode")
    given, of = texts(overrides), _path(corpus)
    check_overrides(given)
    recipe = decode_recipe(Path(exp), given, of)
    beside = [(Path(run), decode_recipe(Path(run), given, of), weight) for run, weight in others]
    if scores is None:
        for path in (Path(exp), *(path for path, *_ in beside)):
            check_trained(path)
    if of is not None and of.resolve() == recipe.corpus.resolve():
        of = None
    return recognise(Path(exp), recipe, progress or Bar(), others=beside, out=_path(out), of=of, scores=_path(scores))


def decode_recipe(exp: Path, overrides: Sequence[str], corpus: Path | None) -> Recipe:
    """The recipe that the run in `exp` keeps, for recognition with these overrides of its section `decode`.

    Raises:
        UserError: an override of something else; not a run directory; `corpus` has nothing to recognise.
    """
    for assignment in overrides:
        key = assignment.partition("=")[0].strip()
        if not key.startswith("decode."):
            hint = " To decode another corpus, give --corpus DIR." if key == "corpus" else ""
            raise UserError(f"decode --set {assignment}: only decode.KEY=VALUE can be set.{hint}")
    recipe = kept_recipe(exp, overrides, corpus)
    if corpus is None or any(text.partition("=")[0].strip() == "decode.splits" for text in overrides):
        return recipe
    splits = tuple(name for name in load_corpus(corpus).splits if name != TRAIN)
    if not splits:
        raise UserError(f"{corpus}: no split but train. Name what to decode: --set 'decode.splits=[train]'.")
    return replace(recipe, decode=replace(recipe.decode, splits=splits))


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)
