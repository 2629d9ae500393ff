"""Beam search through a transducer for one utterance (kaldi-decoder's FasterDecoder)."""

import kaldi_decoder
import kaldifst
import numpy as np
import numpy.typing as npt

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
