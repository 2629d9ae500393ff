"""Lhotse manifests: what was written is read back; what others write is understood, or refused with file and line."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.build import prepare_lhotse
from roundelay_speech.corpus.formats.export import write_part
from roundelay_speech.corpus.formats.lhotse import find_parts, read_part
from roundelay_speech.corpus.options import Preparation, PrepareOptions
from roundelay_speech.data.manifest import Utterance
from support.corpora import DICTIONARY, RATE, cut_anywhere, recorded, utterance, write_recordings
from support.said import refusal


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("corpus"))


@settings(max_examples=40)
@given(some=cut_anywhere(may_be_whole=False), cuts=st.booleans())
def test_round_trip(root: Path, some: list[Utterance], cuts: bool) -> None:
    """Through cuts, and through recordings and supervisions; written again, the files are the same."""
    wanted = [replace(one, path=str(root / one.path)) for one in some]
    write_part(root / "out", "train", wanted[::-1], root)
    kinds = find_parts(root / "out")["train"]
    assert sorted(kinds) == ["cuts", "recordings", "supervisions"]
    if not cuts:
        del kinds["cuts"]
    assert read_part(kinds, root, "error") == (wanted, [])
    write_part(root / "again", "train", wanted, root)
    for path in (root / "out").iterdir():
        assert (root / "again" / path.name).read_bytes() == path.read_bytes()


def recording(name: str, samples: int = 4000, /, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "sources": [{"type": "file", "channels": [0], "source": f"{name}.wav"}],
        "sampling_rate": RATE,
        "num_samples": samples,
        "duration": samples / RATE,
        "channel_ids": [0],
    } | fields


def supervision(name: str, of: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "recording_id": of, "start": 0.0, "duration": 0.5, "channel": 0, "text": "YES"} | fields


def cut(name: str, of: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"cut-{name}",
        "start": 0.0,
        "duration": 0.5,
        "channel": 0,
        "supervisions": [supervision(name, of)],
        "recording": recording(of),
        "type": "MonoCut",
    } | fields


def lines(path: Path, *records: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read_cuts(folder: Path, *records: object) -> list[Utterance]:
    return read_part({"cuts": lines(folder / "cuts.jsonl", *records)}, folder, "error")[0]


def test_supervisions_of_a_cut_are_utterances(tmp_path: Path) -> None:
    """Their times are relative to the cut, and they may begin before it."""
    recorded(tmp_path, "r", 1.0)
    two = [
        supervision("a", "r", start=-0.1, duration=0.2, speaker="s"),
        supervision("b", "r", start=0.25, duration=0.25),
    ]
    whole = recording("r", 8000)
    a, b = read_cuts(tmp_path, cut("x", "r", start=0.5, supervisions=two, recording=whole))
    assert (a.id, a.start, a.num_samples, a.speaker, a.path) == ("a", 0.4, 1600, "s", str(tmp_path / "r.wav"))
    assert (b.start_sample, b.num_samples, b.speaker) == (6000, 2000, "r")


def test_channels_in_files_of_their_own(tmp_path: Path) -> None:
    recorded(tmp_path, "left")
    recorded(tmp_path, "right")
    sources = [{"type": "file", "channels": [n], "source": f"{name}.wav"} for n, name in enumerate(("left", "right"))]
    one = recording("r", sources=sources, channel_ids=[0, 1])
    lines(tmp_path / "recordings.jsonl", one)
    lines(tmp_path / "supervisions.jsonl", supervision("a", "r", channel=1), supervision("b", "r", channel=[0]))
    a, b = read_part(find_parts(tmp_path)[""], tmp_path, "error")[0]
    assert (a.recording_id, a.channel, Path(a.path).name) == ("r_1", 0, "right.wav")
    assert (b.recording_id, b.channel, Path(b.path).name) == ("r_0", 0, "left.wav")


def test_an_end_a_little_late_is_cut(tmp_path: Path) -> None:
    recorded(tmp_path, "r")
    (late,) = read_cuts(tmp_path, cut("a", "r", supervisions=[supervision("a", "r", duration=0.7)]))
    assert late.num_samples == 4000


UNUSABLE = {
    "MixedCut": ({"type": "MixedCut"}, "a MixedCut; the package lhotse makes its audio"),
    "no supervision": ({"supervisions": []}, "no supervision, so no transcript"),
    "no recording": ({"recording": None}, "no recording, so no audio"),
    "late": ({"start": 9.0}, "from 9 to 9.5 s is not in its recording of 0.5 s"),
    "early": ({"start": -1}, "from -1 to -0.5 s is not in its recording"),
    "silent": ({"supervisions": [supervision("a", "r", text=None)]}, "empty transcript"),
    "other channel": ({"supervisions": [supervision("a", "r", channel=3)]}, "its recording r has no channel 3"),
    "both channels": ({"supervisions": [supervision("a", "r", channel=[0, 1])]}, "spoken on several channels"),
    "transformed": ({"recording": recording("r", transforms=[{"name": "Speed"}])}, "is to be transformed"),
    "command": (
        {"recording": recording("r", sources=[{"type": "command", "channels": [0], "source": "rm x"}])},
        "is no file but a command",
    ),
    "missing": ({"recording": recording("none")}, "no such file"),
    "shorter": ({"recording": recording("r", 5000)}, "4000 samples at 8000 Hz, in the manifest 5000 at 8000 Hz"),
}


@pytest.mark.parametrize("case", UNUSABLE.values(), ids=UNUSABLE)
def test_what_cannot_be_used_is_named_or_left_out(tmp_path: Path, case: tuple[dict[str, Any], str]) -> None:
    recorded(tmp_path, "r")
    recorded(tmp_path, "s")
    path = lines(tmp_path / "cuts.jsonl.gz", cut("a", "r", **case[0]), cut("b", "s"))
    said = refusal(read_part, {"cuts": path}, tmp_path, "error")
    assert "1 of 2 utterances cannot be used" in said
    assert f": {path}:1: " in said
    assert case[1] in said
    kept, left_out = read_part({"cuts": path}, tmp_path, "skip")
    assert ([u.id for u in kept], len(left_out)) == (["b"], 1)


FAULTS = {
    "type": ({"start": "0"}, '`start` is "0", not a number of seconds'),
    "infinite": ({"start": float("inf")}, "not a number of seconds"),
    "huge": ({"recording": recording("r", num_samples=10**400)}, "`num_samples` is 1000"),
    "no id": ({"id": None}, "`id` is null, not text"),
    "list": ({"supervisions": 3}, "`supervisions` is not a list"),
    "sources": ({"recording": recording("r", sources=[])}, "`sources` of the recording r"),
    "channels": ({"recording": recording("r", sources=[{"channels": ["x"]}])}, "`channels` of the recording r"),
    "two words": ({"supervisions": [supervision("a b", "r")]}, "it must be one word"),
    "surrogate": ({"supervisions": [supervision("a", "r", text="\ud800")]}, "half of a character"),
    "zero": (
        {"recording": recording("r\0", sources=[{"type": "file", "channels": [0], "source": "\0"}])},
        "not the name",
    ),
}


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS)
def test_records_that_are_not_lhotses(tmp_path: Path, case: tuple[dict[str, Any], str]) -> None:
    """An error under either policy, with file and line."""
    recorded(tmp_path, "r")
    path = lines(tmp_path / "cuts.jsonl", cut("b", "r"), cut("a", "r", **case[0]))
    said = refusal(read_part, {"cuts": path}, tmp_path, "skip")
    assert f"{path}:2: " in said
    assert case[1] in said


def test_broken_lines_and_files(tmp_path: Path) -> None:
    recorded(tmp_path, "r")
    path = tmp_path / "cuts.jsonl"
    for content in (b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b"}"):
        path.write_bytes(json.dumps(cut("b", "r")).encode() + b"\n" + content + b"\n")
        with pytest.raises(UserError, match=rf"{path}:2: "):
            read_part({"cuts": path}, tmp_path, "skip")
    packed = lines(tmp_path / "cuts.jsonl.gz", *[cut(f"b{n}", "r") for n in range(100)])
    whole = packed.read_bytes()
    for length in (1, 20, len(whole) // 2, len(whole) - 1):
        packed.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cuts\.jsonl\.gz:\d+: cannot be read"):
            read_part({"cuts": packed}, tmp_path, "skip")
    path.write_text("".join(json.dumps(cut("b", "r")) + "\n" for _ in range(2)))
    with pytest.raises(UserError, match="the id b occurs more than once"):
        read_part({"cuts": path}, tmp_path, "skip")


def test_supervisions_without_their_recording(tmp_path: Path) -> None:
    recorded(tmp_path, "r")
    lines(tmp_path / "recordings.jsonl", recording("r"), recording("r"))
    lines(tmp_path / "supervisions.jsonl", supervision("a", "r"), supervision("b", "q"))
    said = refusal(read_part, find_parts(tmp_path)[""], tmp_path, "skip")
    assert f"recordings.jsonl:2: the recording r is already in {tmp_path}/recordings.jsonl:1" in said
    assert "supervisions.jsonl:2: its recording q is in no line of the recordings" in said


def test_parts_by_name(tmp_path: Path) -> None:
    for name in (
        "mini_librispeech_recordings_train-clean-5.jsonl.gz",
        "mini_librispeech_supervisions_train-clean-5.jsonl.gz",
        "cuts_dev.jsonl",
        "recordings_test.jsonl",  # half of a pair
        "features_dev.jsonl",
        "eval/cuts.jsonl.gz",
    ):
        lines(tmp_path / name)
    assert sorted(find_parts(tmp_path)) == ["dev", "eval", "train-clean-5"]
    lines(tmp_path / "other_cuts_dev.jsonl")
    with pytest.raises(UserError, match="is of the same part"):
        find_parts(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        find_parts(tmp_path / "none")
    with pytest.raises(UserError, match="no Lhotse manifests here"):
        find_parts(lines(tmp_path / "empty" / "other.jsonl").parent)


def test_prepare(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        recorded(tmp_path, name)
    lines(tmp_path / "cuts_tr.jsonl.gz", cut("s-a", "a"), cut("s-b", "b"))
    lines(tmp_path / "cuts_dev.jsonl.gz", cut("t-c", "c"))
    (tmp_path / "words.dic").write_text(DICTIONARY)

    def prepare(splits: dict[str, str], **options: Any) -> Any:
        return prepare_lhotse(
            tmp_path,
            tmp_path / "words.dic",
            splits,
            Preparation(tmp_path / "data", "toy", options=PrepareOptions(**options)),
            Silent(),
        )

    with pytest.raises(UserError, match=r"none of the parts 'dev', 'tr' is named train; say which"):
        prepare({})
    with pytest.raises(UserError, match="no part 'x' of manifests; there are 'dev', 'tr'"):
        prepare({"train": "x"})
    corpus = prepare({"train": "tr", "dev": "dev"})
    assert {split: [u.id for u in us] for split, us in corpus.splits.items()} == {
        "train": ["s-a", "s-b"],
        "dev": ["t-c"],
    }
    assert corpus.features().array.shape == (3 * 48, 40)
    (tmp_path / "b.wav").unlink()
    with pytest.raises(UserError, match=r"1 of 2 utterances of `train` would be left out(.|\n)*--max-bad-share"):
        prepare({"train": "tr"}, on_bad="skip")
    assert len(prepare({"train": "tr"}, on_bad="skip", max_bad_share=0.5).left_out["train"]) == 1


def test_what_cannot_be_written(tmp_path: Path) -> None:
    a = recorded(tmp_path, "a")
    b = utterance("b", "b.wav")
    c = utterance("c", "a.wav", seconds=0.6)
    d = utterance("d", "c.wav", recording_id="a")
    message = refusal(write_part, tmp_path / "out", "train", [a, b, c, d, a], tmp_path)
    assert "b: " in message
    assert "no such file" in message
    assert "c: " in message
    assert "d: its recording a is in" in message
    assert "a: the id occurs more than once" in message
    assert not (tmp_path / "out").exists()
