"""Beam search through a transducer for one utterance (kaldi-decoder's FasterDecoder), at once or as it comes."""

from typing import final

import numpy as np
import numpy.typing as npt

from roundelay.speech.bindings import kaldi_decoder, kaldifst

Float32 = npt.NDArray[np.float32]

FEWEST_ACTIVE = 20
"""Paths the decoder keeps whatever the beam says; max_active must be above it."""


def search(
    fst: object, scores: Float32, beam: float, max_active: int
) -> tuple[list[int], list[int], float, float, bool] | None:
    """The best path: (input labels, output labels, graph cost, acoustic cost, final state reached); None without one.

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


@final
class GrowingSearch:
    """A search of an utterance that is still being said: after the same frames, however they came, the words of
    `search`.

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
        """Go on through these frames (T, columns)."""
        if len(scores):
            frames = np.ascontiguousarray(scores, dtype=np.float32)
            self._decoder.advance_decoding(kaldi_decoder.DecodableCtc(frames, offset=self._frames))
            self._frames += len(frames)

    def words(self) -> list[int]:
        """Output labels of the best path, of a whole sentence if one can end here."""
        if not self._frames:
            return []
        found, best = self._decoder.get_best_path()
        return list(kaldifst.get_linear_symbol_sequence(best)[2]) if found else []
