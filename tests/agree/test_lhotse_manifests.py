"""Our manifests against Lhotse's own classes: it loads what we write, and we read what it writes."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from roundelay_speech.audio.reading import read_audio
from roundelay_speech.corpus.formats.export import write_part
from roundelay_speech.corpus.formats.lhotse import find_parts, read_part
from support.corpora import recorded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lhotse = pytest.importorskip("lhotse", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("default")  # of Lhotse and what it imports


def test_lhotse_loads_what_we_write(tmp_path: Path) -> None:
    utterances = [
        recorded(tmp_path, "a-1", gender="f", language="en"),
        recorded(tmp_path, "a-2", 0.8, start=0.25, duration=0.5, num_samples=4000),
    ]
    write_part(tmp_path / "out", "train", utterances, tmp_path)
    cuts = lhotse.load_manifest(tmp_path / "out" / "cuts_train.jsonl.gz")
    recordings = lhotse.load_manifest(tmp_path / "out" / "recordings_train.jsonl.gz")
    supervisions = lhotse.load_manifest(tmp_path / "out" / "supervisions_train.jsonl.gz")
    lhotse.validate_recordings_and_supervisions(recordings, supervisions)
    assert [cut.id for cut in cuts] == ["a-1", "a-2"]
    for cut, utterance in zip(cuts, utterances, strict=True):
        lhotse.validate(cut)
        assert (cut.start, cut.duration, cut.num_samples) == (
            utterance.start,
            utterance.duration,
            utterance.num_samples,
        )
        (supervision,) = cut.supervisions
        assert (supervision.text, supervision.speaker, supervision.gender) == ("YES", "a", utterance.gender)
        np.testing.assert_allclose(cut.load_audio()[0], read_audio(utterance, tmp_path), atol=1e-6)
    # And its cut set, made from our recordings and supervisions, has our cuts' supervisions.
    made = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions).trim_to_supervisions()
    assert sorted((c.supervisions[0].id, c.start, c.duration) for c in made) == [
        (u.id, u.start, u.duration) for u in utterances
    ]


def test_we_read_what_lhotse_writes(tmp_path: Path) -> None:
    """Its cuts, through us and back, are the same cut set."""
    utterances = [recorded(tmp_path, "a-1", gender="f"), recorded(tmp_path, "b-1", 1.0)]
    recordings = [lhotse.Recording.from_file(tmp_path / f"{u.id}.wav", recording_id=u.recording_id) for u in utterances]
    cuts = lhotse.CutSet.from_cuts(
        lhotse.MonoCut(
            id=f"cut-{u.id}",
            start=0.125,
            duration=0.25,
            channel=0,
            recording=r,
            supervisions=[
                lhotse.SupervisionSegment(
                    id=u.id, recording_id=r.id, start=0.0, duration=0.25, channel=0, text="NO GO", speaker=u.speaker
                )
            ],
        )
        for u, r in zip(utterances, recordings, strict=True)
    )
    cuts.to_file(tmp_path / "cuts_train.jsonl.gz")
    read, left_out = read_part(find_parts(tmp_path)["train"], tmp_path, "error")
    assert left_out == []
    assert [(u.id, u.start_sample, u.num_samples, u.text) for u in read] == [
        ("a-1", 1000, 2000, "NO GO"),
        ("b-1", 1000, 2000, "NO GO"),
    ]
    write_part(tmp_path / "out", "train", read, tmp_path)
    back = lhotse.load_manifest(tmp_path / "out" / "cuts_train.jsonl.gz")
    for ours, theirs in zip(back, cuts, strict=True):
        assert (ours.start, ours.duration, ours.channel) == (theirs.start, theirs.duration, theirs.channel)
        assert ours.supervisions == theirs.supervisions
        assert ours.recording == theirs.recording
