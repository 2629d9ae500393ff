"""`roundelay score`: what it is given, what it prints."""

import re
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay_speech.scoring.alignment.groups import Group
from roundelay_speech.scoring.formats.trn import write_trn
from roundelay_speech.scoring.normalise import write_groups

REFS = {"s1-u1": "UM HE'S HERE", "s1-u2": "ALL RIGHT", "s2-u1": "WELL THEN"}
HYPS = {"s1-u1": "HE IS HERE", "s1-u2": "ALRIGHT", "s2-u1": "WELL DONE"}
BETTER = {**HYPS, "s2-u1": "WELL THEN"}
GLM = str(Path(__file__).parents[2] / "docs" / "example.glm")


def put(folder: Path, texts: dict[str, str], name: str) -> str:
    write_trn(folder / name, {key: text.split() for key, text in texts.items()})
    return str(folder / name)


@pytest.fixture
def run(tmp_path: Path) -> str:
    return make_run(tmp_path / "one", HYPS)


def make_run(exp: Path, hyps: dict[str, str]) -> str:
    folder = exp / "decode" / "test"
    put(folder, REFS, "ref.trn")
    put(folder, hyps, "hyp.trn")
    write_groups(folder / "groups.json", {name: Group(name[:2], "swb" if "u1" in name else "ch") for name in REFS})
    return str(exp)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["score", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_a_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    hyp = Path(run, "decode", "test", "hyp.trn")
    assert said(capsys, run) == f"{hyp}: %WER 71.43 [ 5 / 7, 0 ins, 1 del, 4 sub ]\n"


def test_everything_of_a_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--interval", "--per-speaker", "--subsets", "--table", "--confusions", "2", "--errors"]
    text = said(capsys, run, *wanted)
    for part in (
        "95 % interval",
        "over 3 utterances",
        "\n  swb  %WER",
        "\n  s2  %WER",
        "Sum/Avg",
        "SUBSET",
        "REF:",
        "substitutions:",
    ):
        assert part in text, part


def test_groups(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a file of speakers or utterances, and by the gender that a run knows."""
    (tmp_path / "spk2region").write_text("s1 north\ns2 south\n")
    text = said(capsys, run, "--by", str(tmp_path / "spk2region"))
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["north", "%WER"], ["south", "%WER"]]
    assert "no speaker's gender is known" in said(capsys, run, "--by", "gender", code=2)
    folder = Path(run, "decode", "test")
    write_groups(folder / "groups.json", {name: Group(name[:2], gender="f") for name in REFS})
    assert [line.split()[0] for line in said(capsys, run, "--by", "gender").splitlines()[1:]] == ["women"]
    (tmp_path / "spk2region").write_text("s8 north\ns9\n")
    assert "s9 has nothing beside it" in said(capsys, run, "--by", str(tmp_path / "spk2region"), code=2)
    (tmp_path / "spk2region").write_text("s8 north\n")
    message = " ".join(said(capsys, run, "--by", str(tmp_path / "spk2region"), code=2).split())
    assert "names none of the utterances of" in message


def test_mapping_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--ref", put(tmp_path, REFS, "ref.trn"), "--hyp", put(tmp_path, HYPS, "hyp.trn")]
    assert "[ 1 / 7, 0 ins, 0 del, 1 sub ]" in said(capsys, *files, "--glm", GLM)


def test_marks_and_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--ref", put(tmp_path, {"u": "{ A / B } (C)"}, "r.trn"), "--hyp", put(tmp_path, {"u": "b"}, "h.trn")]
    assert "[ 6 / 6" in said(capsys, *files)
    assert "[ 1 / 2" in said(capsys, *files, "--marks")
    assert "[ 0 / 2" in said(capsys, *files, "--marks", "--ignore-case")


def test_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ref, hyp = put(tmp_path, {"u": "A B C D E F"}, "r.trn"), put(tmp_path, {"u": "A X Y A B C"}, "h.trn")
    assert "[ 5 / 6, 0 ins, 0 del, 5 sub ]" in said(capsys, "--ref", ref, "--hyp", hyp)
    assert "[ 6 / 6, 3 ins, 3 del, 0 sub ]" in said(capsys, "--ref", ref, "--hyp", hyp, "--sclite-costs")


def test_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ref.stm").write_text("f A s1 0 1 <o,swb> HE'S (um) HERE\nf B s2 0 1 <o,ch> YES\n")
    (tmp_path / "hyp.ctm").write_text("f A 0.1 0.2 he's 0.9\nf A 0.5 0.2 here 0.9\n")
    files = ["--stm", str(tmp_path / "ref.stm"), "--ctm", str(tmp_path / "hyp.ctm")]
    assert "1 of 2 channels with speech have no recognised word: f B" in said(capsys, *files, code=2)
    text = said(capsys, *files, "--missing-as-empty", "--glm", GLM, "--subsets")
    assert "%WER 20.00 [ 1 / 5, 0 ins, 1 del, 0 sub ]" in text
    assert "\n  ch   %WER 100.00" in text


def test_two_runs(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, make_run(tmp_path / "two", BETTER), "--compare", run)
    assert "difference -14.29" in text
    found = re.search(r"probability of improvement (\S+) %", text)
    assert found is not None
    assert float(found[1]) == pytest.approx(100 * (1 - (2 / 3) ** 3), abs=2)  # unless the third is never drawn
    assert "matched pairs: 3 segments, z -1.00" in text


def test_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ref, hyp, better = (put(tmp_path, t, n) for t, n in ((REFS, "r.trn"), (HYPS, "h.trn"), (BETTER, "b.trn")))
    assert "difference +14.29" in said(capsys, "--ref", ref, "--hyp", hyp, "--compare", better)


def test_what_cannot_be_scored(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ref = put(tmp_path, REFS, "ref.trn")
    for arguments, message in (
        ([], "score needs run directories"),
        (["--ref", ref], "score needs both --ref and --hyp"),
        (["--ctm", ref], "score needs both --stm and --ctm"),
        ([str(tmp_path)], "nothing decoded here"),
        ([run, "--ref", ref, "--hyp", ref, "--compare", run], "here are 2"),
        ([run, "--glm", ref], "ref.trn:1: expected `before => after"),
    ):
        assert message in said(capsys, *arguments, code=2)
