"""Beam search through a transducer for one utterance (kaldi-decoder's FasterDecoder), whole or as it comes."""

from functools import cache
from typing import Any, final

import numpy as np
import numpy.typing as npt

from roundelay_speech.bindings import kaldi_decoder, kaldifst

Float32 = npt.NDArray[np.float32]

FEWEST_ACTIVE = 20
"""Number of paths that the decoder keeps under any beam; max_active must be above it."""


def search(
    fst: object, scores: Float32, beam: float, max_active: int
) -> tuple[list[int], list[int], float, float, bool] | None:
    """Return the best path: (input labels, output labels, graph cost, acoustic cost, final state reached); None if
    there is none.

    Label i of the graph scores column i - 1 of `scores`.
    """
    options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=max_active, min_active=FEWEST_ACTIVE)
    decoder = kaldi_decoder.FasterDecoder(fst, options)
    decoder.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(scores, dtype=np.float32)))
    found, best = decoder.get_best_path()
    if not found:
        return None
    _, labels, words, weight = kaldifst.get_linear_symbol_sequence(best)
    return labels, words, weight.value1, weight.value2, decoder.reached_final()


_LOOKED_AT = 50  # a frame in so many: there every arc is a call of Python
_UNCROWDED = 50_000  # paths that are followed while counting


def crowded(fst: object, scores: Float32, beam: float, most: int) -> bool:
    """Return True if a search with this beam, and no limit of paths, would follow more than `most` arcs for each frame
    of scores (T, columns), on average over a fixed choice of frames."""
    options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=_UNCROWDED, min_active=FEWEST_ACTIVE)
    decoder = kaldi_decoder.FasterDecoder(fst, options)
    decoder.init_decoding()
    followed, frames = 0, np.ascontiguousarray(scores, dtype=np.float32)
    for first in range(0, len(frames), _LOOKED_AT):
        counting = _counting()(frames[first].tolist(), first)
        decoder.advance_decoding(counting)
        followed += counting.followed
        if followed * _LOOKED_AT > most * (len(frames) + _LOOKED_AT):
            return True
        if len(rest := frames[first + 1 : first + _LOOKED_AT]):
            decoder.advance_decoding(kaldi_decoder.DecodableCtc(rest, offset=first + 1))
    return False


@cache
def _counting() -> Any:
    """Return a class of scores of one frame that counts how often it is asked; made at its first use, since it needs
    the library."""

    class Counting(kaldi_decoder.DecodableInterface):  # type: ignore[misc, name-defined]
        def __init__(self, scores: list[float], frame: int) -> None:
            super().__init__()
            self.followed, self._scores, self._frame = 0, scores, frame

        def log_likelihood(self, _frame: int, label: int) -> float:
            self.followed += 1
            return self._scores[label - 1]

        def is_last_frame(self, frame: int) -> bool:
            return frame == self._frame

        def num_frames_ready(self) -> int:
            return self._frame + 1

        def num_indices(self) -> int:
            return len(self._scores)

    return Counting


@final
class GrowingSearch:
    """A search of an utterance that is still being said: after the same frames, in pieces of any size, it gives the
    words of `search`.

    Args:
        beam, max_active: as for `search`.
    """

    def __init__(self, fst: object, beam: float, max_active: int) -> None:
        options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=max_active, min_active=FEWEST_ACTIVE)
        self._fst = fst  # the decoder keeps no reference of its own
        self._decoder = kaldi_decoder.FasterDecoder(fst, options)
        self._decoder.init_decoding()
        self._frames = 0

    def push(self, scores: Float32) -> None:
        """Go on with the search through the next frames (T, columns)."""
        if len(scores):
            frames = np.ascontiguousarray(scores, dtype=np.float32)
            self._decoder.advance_decoding(kaldi_decoder.DecodableCtc(frames, offset=self._frames))
            self._frames += len(frames)

    def words(self) -> list[int]:
        """Return the output labels of the best path, of a whole sentence if one can end now."""
        if not self._frames:
            return []
        found, best = self._decoder.get_best_path()
        return list(kaldifst.get_linear_symbol_sequence(best)[2]) if found else []
