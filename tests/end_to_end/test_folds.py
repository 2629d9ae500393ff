"""`roundelay evaluate RECIPE --folds N`: speakers who were never heard, and an interrupted command that goes on."""

from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay_speech.prepared import load_corpus
from roundelay_speech.recognition.recognise import recognise
from roundelay_speech.scoring.formats.trn import read_trn

DECODING = "roundelay_speech.grids.running.recognise"
FOLDS = ["evaluate", "recipe.yaml", "--folds", "2", "training.runtime=sim", "schedule.max_epochs=2"]


def trained(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.glob("fold-*/model.safetensors"))}


def test_everybody_is_recognised_by_a_model_that_never_heard_them(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, whole = inside / "exp/beeps/folds-2", load_corpus(inside / "data")

    def interrupted(exp: Path, *given: object, **more: object) -> object:
        if exp.name == "fold-2":
            raise KeyboardInterrupt
        return recognise(exp, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(DECODING, interrupted)
    assert main(FOLDS) == 130
    assert "exp/beeps/folds-2. The same command goes on from there." in capsys.readouterr().err
    monkeypatch.setattr(DECODING, recognise)
    before = trained(folder)
    assert len(before) == 2
    assert main(FOLDS) == 0
    assert trained(folder) == before  # nothing is trained twice
    printed = capsys.readouterr().out

    told = read_json(folder / "folds.json")
    for name, speakers in told["left_out"].items():
        made = load_corpus(folder / "corpora" / name)
        assert {u.speaker for u in made.splits["test"]} == set(speakers)
        assert {u.speaker for u in made.splits["train"]}.isdisjoint(speakers)
        made.features()
    said = [u for split in ("train", "test") for u in whole.splits[split]]
    assert set(told["speakers"]) == {u.speaker for u in said}
    assert told["words"] == sum(len(u.words) for u in said)
    parts = [read_trn(folder / name / "decode/test/hyp.trn") for name in told["left_out"]]
    assert {name: words for part in parts for name, words in part.items()} == read_trn(folder / "decode/test/hyp.trn")
    assert f"%WER {told['wer']:.2f} [ {told['errors']} / {told['words']}" in printed
    assert "(bootstrap over 4 speakers)" in printed
    assert main(["score", str(folder), "--interval", "--over", "speakers", "--per-speaker"]) == 0
    assert printed.split("%WER", 1)[1].strip() == capsys.readouterr().out.split("%WER", 1)[1].strip()

    assert main([*FOLDS, "training.seed=1"]) == 1
    assert "belongs to another configuration: training.seed was 0, now 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["recipe.yaml", "--folds", "9"], "has 4 speakers outside dev"),
        (["recipe.yaml", "--folds", "2", "--data", "data"], "leave --data out"),
        (["recipe.yaml", "--folds", "2", "schedule.max_epoch=1"], "did you mean max_epochs"),
        (["recipe.yaml", "--folds", "2", "init.model=exp/a"], "may have heard the speakers"),
        (["model", "--data", "data", "schedule.max_epochs=1"], "leave KEY=VALUE out, or give --folds"),
        (["model"], "needs --data DIR, the speech to recognise; or --folds N"),
    ],
)
def test_what_does_not_fit_is_said(
    inside: Path, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *given]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
