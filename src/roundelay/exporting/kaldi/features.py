"""Features of a packed model as Kaldi computes them: options of its programs, and statistics of the average speaker.

Kaldi's filterbanks are ours, if it adds no dither.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from roundelay.core.errors import UserError
from roundelay.packed.folder import PackedModel
from roundelay.speech.features.parts import Filterbank

GLOBAL_FRAMES = 100_000
"""Frames that the statistics of the average speaker are said to be of; only ratios count."""


def filterbank_of(packed: PackedModel, folder: Path) -> Filterbank:
    """The one filterbank that all networks of a packed model hear.

    Raises:
        UserError: they hear something else.
    """
    kinds = [one.features for one in packed.networks]
    parts = kinds[0].parts
    if any(kind != kinds[0] for kind in kinds) or len(parts) > 1 or not isinstance(parts[0], Filterbank):
        heard = ", ".join(dict.fromkeys(part.name for kind in kinds for part in kind.parts))
        raise UserError(f"{folder}: it hears {heard}. Written for Kaldi are models that hear one filterbank.")
    return parts[0]


def frame_options(part: Filterbank, rate: int) -> dict[str, object]:
    """Options of compute-fbank-feats."""
    config = part.fbank
    return {
        "sample-frequency": rate,
        "frame-length": config.frame_length_ms,
        "frame-shift": config.frame_shift_ms,
        "preemphasis-coefficient": config.preemphasis,
        "window-type": "povey",
        "dither": 0,
        "snip-edges": "true",
        "num-mel-bins": config.num_bins,
        "low-freq": config.low_freq,
        "high-freq": config.high_freq,
        "use-energy": "false",
    }


def option_lines(options: Mapping[str, object]) -> str:
    """Contents of a file of options."""
    return "".join(f"--{name}={value}\n" for name, value in options.items())


def global_statistics(mean: Sequence[float], std: Sequence[float]) -> str:
    """Statistics of the average speaker as Kaldi has them: sums and number of frames, sums of squares and nothing."""
    sums = GLOBAL_FRAMES * np.array(mean)
    squares = GLOBAL_FRAMES * (np.square(std) + np.square(mean))
    rows = [[*sums.tolist(), GLOBAL_FRAMES], [*squares.tolist(), 0]]
    return f" [\n{''.join('  ' + ' '.join(map(str, row)) + chr(10) for row in rows)}]\n"
