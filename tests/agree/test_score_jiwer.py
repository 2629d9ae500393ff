"""Word errors agree with jiwer, an independent implementation, on thousands of random pairs."""

import jiwer
import numpy as np

from roundelay.core.streams import stream
from roundelay_speech.scoring.score import ErrorCounts, align_words, count_errors


def random_pair(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """A reference and a corrupted copy of it, or an unrelated hypothesis."""
    vocabulary = np.array([f"W{i}" for i in range(int(rng.integers(2, 12)))])
    ref = [str(w) for w in rng.choice(vocabulary, rng.integers(1, 15))]
    if rng.random() < 0.3:
        return ref, [str(w) for w in rng.choice(vocabulary, rng.integers(0, 15))]
    hyp = []
    for word in ref:
        kind = rng.integers(0, 10)
        if kind != 0:
            hyp.append(word if kind > 2 else str(rng.choice(vocabulary)))
        if kind == 1:
            hyp.append(str(rng.choice(vocabulary)))
    return ref, hyp


def test_same_totals_as_jiwer() -> None:
    rng = stream(0, "jiwer")
    total = ErrorCounts()
    refs, hyps = [], []
    for _ in range(3000):
        ref, hyp = random_pair(rng)
        counts = count_errors(align_words(ref, hyp))
        theirs = jiwer.process_words(" ".join(ref), " ".join(hyp))
        assert counts.total == theirs.substitutions + theirs.deletions + theirs.insertions, (ref, hyp)
        assert counts.ref == len(ref)
        total += counts
        refs.append(" ".join(ref))
        hyps.append(" ".join(hyp))
    np.testing.assert_allclose(total.wer, 100 * jiwer.wer(refs, hyps))
