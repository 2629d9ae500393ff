"""Truth of confidences: against numbers worked out by hand, and the laws of the measures."""

from xml.etree import ElementTree

import numpy as np
import pytest

from roundelay.core.streams import stream
from roundelay.reports.charts import reliability_picture
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.scoring.reliability import judged, normalised_cross_entropy, reliability


def test_normalised_cross_entropy_by_hand() -> None:
    """Three right words of four: a constant gives 0.8113 bits a word."""
    right = np.array([True, True, True, False])
    assert normalised_cross_entropy(np.full(4, 0.75), right) == pytest.approx(0)
    sure = np.array([0.5, 1.0, 0.5, 0.5])  # 1 + 0 + 1 + 1 bits
    assert normalised_cross_entropy(sure, right) == pytest.approx(1 - 0.75 / 0.8112781, abs=1e-3)
    assert normalised_cross_entropy(right.astype(float), right) == pytest.approx(1, abs=1e-3)
    assert (normalised_cross_entropy(np.full(4, 0.99), right) or 0) < 0  # too sure: worse than the constant
    assert normalised_cross_entropy(sure, np.ones(4, bool)) is None


def test_the_area_under_the_curve_counts_pairs() -> None:
    """Six pairs of a right and a wrong word: four in order, one equal."""
    sure, right = np.array([0.9, 0.5, 0.4, 0.5, 0.2]), np.array([True, True, True, False, False])
    assert reliability([(sure, right)]).auc == pytest.approx((2 + 1.5 + 1) / 6)
    order = stream(0, "order").permutation(5)
    assert reliability([(sure[order], right[order])]).auc == pytest.approx(4.5 / 6)


def test_true_confidences_lie_on_the_diagonal_and_their_interval_holds_the_truth() -> None:
    rng = stream(0, "confidences")
    sure = rng.beta(4, 1, 20_000)
    right = rng.random(20_000) < sure
    utterances = [*zip(np.array_split(sure, 4000), np.array_split(right, 4000), strict=True)]
    found = reliability(utterances)
    assert found.nce is not None
    assert found.interval is not None
    assert found.interval[0] < found.nce < found.interval[1]
    for one in found.bins:
        assert one.right / one.words == pytest.approx(one.confidence, abs=0.03)
    few = reliability(utterances[:200])
    assert few.interval is not None
    assert few.interval[1] - few.interval[0] > 2 * (found.interval[1] - found.interval[0])
    assert few.interval[0] < found.nce < few.interval[1]


def test_the_line_says_how_many_words_it_is_of() -> None:
    nothing = reliability([(np.array([0.9, 0.8]), np.ones(2, bool)), (np.zeros(0), np.zeros(0, bool))])
    assert str(nothing) == "nothing can be said of 2 words, 2 of which are right"
    some = reliability([(np.array([0.9, 0.2]), np.array([True, False]))] * 3)
    assert str(some).startswith("normalised cross-entropy 0.76, 95 % interval 0.76 to 0.76; area under the curve 1.00")


def test_words_are_judged_where_they_were_said() -> None:
    """An insertion is wrong, and so is the second of two words that were exchanged; words without confidence are left
    out."""
    found = [TimedWord(word, 0.0, 0.1, sure) for word, sure in (("A", 0.9), ("X", 0.4), ("B", None), ("D", 0.6))]
    sure, right = judged(["A", "B", "C"], found)
    assert sure.tolist() == [0.9, 0.4, 0.6]
    assert right.tolist() == [True, False, False]
    assert [len(side) for side in judged(["A"], [])] == [0, 0]


def test_the_picture_puts_true_confidences_on_the_diagonal() -> None:
    root = ElementTree.fromstring(reliability_picture([(0.25, 1, 4), (0.75, 30, 40)], "of <a> model"))
    assert root.get("aria-label") == "of <a> model"
    space = "{http://www.w3.org/2000/svg}"
    diagonal = next(one for one in root.iter(f"{space}line") if one.get("class") == "true")
    x1, y1, x2, y2 = (float(diagonal.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
    bars = [one for one in root.iter(f"{space}line") if one.get("class") == "bar"]
    for share, dot, bar in zip((0.25, 0.75), root.iter(f"{space}circle"), bars, strict=True):
        assert float(dot.get("cx", "")) == pytest.approx(x1 + share * (x2 - x1), abs=0.01)
        assert float(dot.get("cy", "")) == pytest.approx(y1 + share * (y2 - y1), abs=0.01)
        assert float(bar.get("y2", "")) < float(dot.get("cy", "")) < float(bar.get("y1", ""))
    heights = [float(bar.get("y1", "")) - float(bar.get("y2", "")) for bar in bars]
    assert heights[0] > 2 * heights[1]  # of fewer words less is known
