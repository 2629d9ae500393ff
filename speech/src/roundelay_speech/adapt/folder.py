"""Files of an adaptation: models and vectors, and their sources.

A folder holds

    models.json     sources of the transforms' models; projection.npz, independent.npz, adapted.npz, labels.npy
    vectors.json     likewise of speaker vectors; background.npz, extractor.npz
    fmllr.scp       transformed features of every utterance, in fmllr.ark
    ivector.scp     the vector of every utterance, in ivector.ark
    features.yaml   both beside a filterbank, for `roundelay features`
    pass1, pass2 .. words of held-out splits, scored: by mixtures of all speakers, then by adapted ones
    log.jsonl       a line for each pass of training
    adaptation.json written last: without it an adaptation is not finished

Legend: T frames of all utterances.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.checksums import read_checked, read_sums, write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, json_line, write_text
from roundelay_speech.adapt.ivector import Extractor
from roundelay_speech.adapt.sat import Models
from roundelay_speech.adapt.vectors import VectorModels
from roundelay_speech.data.arrays import BROKEN, save_array
from roundelay_speech.hmm.alignment import LOG
from roundelay_speech.hmm.gmm import load_mixtures, save_mixtures

MODELS, VECTORS, DONE = "models.json", "vectors.json", "adaptation.json"
FMLLR, IVECTOR, FEATURES_FILE = "fmllr", "ivector", "features.yaml"
PROJECTION, INDEPENDENT, ADAPTED, _LABELS = "projection.npz", "independent.npz", "adapted.npz", "labels.npy"
_BACKGROUND, _EXTRACTOR = "background.npz", "extractor.npz"
ADAPTATION_VERSION = 1
LARGE = (f"{FMLLR}.ark", f"{IVECTOR}.ark")  # not read only to see whether they are whole; `roundelay verify` does


def digest(values: Sequence[Any]) -> str:
    """Return a hash of values that JSON can hold, equal only for equal values."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def there_already(folder: Path, name: str, made_from: Mapping[str, Any]) -> bool:
    """Return True if the folder holds models made from the same facts.

    Args:
        name: MODELS or VECTORS.
        made_from: the facts that decide the result, by name.

    Raises:
        UserError: the folder holds models made from others; names the difference.
    """
    if not (folder / name).is_file():
        return False
    there = read_checked(folder / name, f"Delete {folder} and run `roundelay adapt` again.", skip=LARGE)
    found = there.get("made_from", {})
    wanted = json.loads(json.dumps(dict(made_from)))
    if other := [key for key, value in wanted.items() if found.get(key) != value]:
        raise UserError(
            f"{folder}: holds an adaptation that differs in {', '.join(other)}. Name another folder (`adaptation` in "
            "the recipe) or delete this one."
        )
    return True


def save_models(
    folder: Path,
    models: Models,
    labels: npt.NDArray[np.int32],
    made_from: Mapping[str, Any],
    log: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write models for transforms, the pdfs (T,) of the training frames, and a log line for each pass."""
    (folder / MODELS).unlink(missing_ok=True)
    with atomic_write(folder / PROJECTION) as file:
        np.savez(file, projection=models.projection, context=np.array(models.context))
    save_mixtures(folder / INDEPENDENT, models.independent)
    save_mixtures(folder / ADAPTED, models.adapted)
    save_array(folder / _LABELS, labels)
    write_text(folder / LOG, "".join(json_line(line) + "\n" for line in log))
    told = {"version": ADAPTATION_VERSION, "made_from": dict(made_from)}
    write_checked(folder / MODELS, told, [PROJECTION, INDEPENDENT, ADAPTED, _LABELS])


def load_models(folder: Path) -> tuple[Models, npt.NDArray[np.int32]]:
    """Return models for transforms, and the pdfs (T,) of training frames, as `save_models` wrote them.

    Raises:
        UserError: a file is missing or damaged.
    """
    _check(folder, MODELS)
    try:
        labels = np.load(folder / _LABELS, allow_pickle=False)
    except BROKEN as error:
        raise _broken(folder, error) from error
    return read_models(folder), labels


def read_models(folder: Path) -> Models:
    """Return models for transforms whose files are known to be whole.

    Raises:
        UserError: a file is missing or broken.
    """
    try:
        with np.load(folder / PROJECTION, allow_pickle=False) as file:
            projection, context = file["projection"], int(file["context"])
    except BROKEN as error:
        raise _broken(folder, error) from error
    independent, adapted = load_mixtures(folder / INDEPENDENT), load_mixtures(folder / ADAPTED)
    return Models(projection, context, independent, adapted)


def save_vectors(folder: Path, models: VectorModels, made_from: Mapping[str, Any]) -> None:
    """Write models for vectors: background mixture and extractor."""
    (folder / VECTORS).unlink(missing_ok=True)
    save_mixtures(folder / _BACKGROUND, models.background)
    with atomic_write(folder / _EXTRACTOR) as file:
        extractor = models.extractor
        np.savez(
            file,
            mean=models.mean,
            std=models.std,
            means=extractor.means,
            variances=extractor.variances,
            loadings=extractor.loadings,
        )
    told = {"version": ADAPTATION_VERSION, "made_from": dict(made_from)}
    write_checked(folder / VECTORS, told, [_BACKGROUND, _EXTRACTOR])


def load_vectors(folder: Path) -> VectorModels:
    """Return models for vectors, as `save_vectors` wrote them.

    Raises:
        UserError: a file is missing or damaged.
    """
    _check(folder, VECTORS)
    try:
        with np.load(folder / _EXTRACTOR, allow_pickle=False) as file:
            extractor = Extractor(file["means"], file["variances"], file["loadings"])
            mean, std = file["mean"], file["std"]
    except BROKEN as error:
        raise _broken(folder, error) from error
    return VectorModels(mean, std, load_mixtures(folder / _BACKGROUND), extractor)


def identity(folder: Path, name: str) -> str:
    """Return a digest of the models in a folder, which identifies features made by them."""
    _, sums = read_sums(folder / name, f"Delete {folder} and run `roundelay adapt` again.")
    return digest([value for key, value in sorted(sums.items()) if key != _LABELS])


def _check(folder: Path, name: str) -> None:
    if not (folder / name).is_file():
        raise UserError(f"{folder}: no adaptation here (no {name}). Run `roundelay adapt` first.")
    read_checked(folder / name, f"Delete {folder} and run `roundelay adapt` again.")


def _broken(folder: Path, error: Exception) -> UserError:
    return UserError(f"{folder}: broken adaptation ({error}). Delete the folder and run `roundelay adapt` again.")
