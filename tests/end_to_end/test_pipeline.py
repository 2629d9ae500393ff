"""The whole path by the command line: audio files and transcripts in, word error rate and a page out."""

import gzip
import json
import pickle
from pathlib import Path

import pytest
import torch
import yaml

from roundelay import loop
from roundelay.cli import main
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.records import LearnersChanged, Segment, of_kind, read_events
from roundelay.learner.module import ModuleLearner
from roundelay_speech.acoustic import make_job
from roundelay_speech.models.frontend import Frontend
from roundelay_speech.recipes.recipe import load_recipe
from roundelay_speech.scoring.formats.ctm import read_ctm
from roundelay_speech.scoring.score import read_trn
from support.beeps import RECIPE


def test_from_recordings_to_a_page(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"one": ["--strategy", "sgd"], "four": ["--strategy", "adpsgd:fixed-ring", "--learners", "4"]}
    for name, options in runs.items():
        assert main(["train", "recipe.yaml", "--exp", name, *options]) == 0
    assert main(["decode", *runs]) == 0
    assert main(["decode", *runs, "--out", "of-both"]) == 2
    assert "for one run directory" in capsys.readouterr().err
    assert main(["score", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all("%WER" in line and "ins" in line for line in lines)
    for name in runs:
        results = json.loads((inside / name / "results.json").read_text())
        errors = results["wer"]["test"]
        assert errors["ref"] == sum(len(t.split()) - 1 for t in (inside / "source/test/text").read_text().splitlines())
        assert errors["wer"] == pytest.approx(100 * (errors["ins"] + errors["del"] + errors["sub"]) / errors["ref"])
        assert errors["wer"] <= 10
        for file in ("ref.trn", "hyp.trn", "wer.txt", "errors.txt", "utterances.jsonl"):
            assert (inside / name / "decode" / "test" / file).stat().st_size
    together(inside)
    assert main(["report", *runs, "--out", "page.html"]) == 0
    page = (inside / "page.html").read_text()
    assert "adpsgd fixed-ring" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def together(inside: Path) -> None:
    """Both runs' log-likelihoods averaged, with everything that can be written beside the words."""
    details = ["decode.nbest=3", "decode.lattice=true", "decode.ctm=true", "decode.word_costs=[0, 0.5]"]
    details += ["decode.beams=[8, 11]", "decode.max_actives=[200, 7000]"]
    settings = [word for text in details for word in ("--set", text)]
    before = (inside / "one" / "results.json").read_bytes()
    assert main(["decode", "one", "--with", "four:0.5", "--out", "both", *settings]) == 0
    assert (inside / "one" / "results.json").read_bytes() == before
    found = json.loads((inside / "both/decode/test/decode.json").read_text())
    assert found["runs"] == pytest.approx({"one": 2 / 3, "four": 1 / 3})
    assert found["word_cost"] in (0.0, 0.5)
    chosen = {name: found[name] for name in ("acoustic_scale", "word_cost", "beam", "max_active")}
    (errors,) = [it["errors"] for it in found["tried_on_dev"] if chosen.items() <= it.items()]
    assert errors <= 1.02 * min(it["errors"] for it in found["tried_on_dev"] if it["max_active"] == 7000)
    assert (inside / "both/decode/test/wer.txt").read_text().startswith("%WER ")
    best = [line.split() for line in (inside / "both/decode/test/nbest.txt").read_text().splitlines()]
    hypotheses = read_trn(inside / "both/decode/test/hyp.trn")
    assert {utterance: words for utterance, rank, _, *words in best if rank == "1"} == hypotheses
    timed = read_ctm(inside / "both/decode/test/hyp.ctm")
    assert {file: [word.word for word in words] for (file, _), words in timed.items()} == hypotheses
    assert gzip.decompress((inside / "both/decode/test/lattices.txt.gz").read_bytes()).count(b"\n\n") == len(hypotheses)
    assert main(["decode", "one", "--out", "alone"]) == 0
    assert (inside / "alone/decode/test/hyp.trn").read_bytes() == (inside / "one/decode/test/hyp.trn").read_bytes()


def test_another_optimizer_and_rule_by_the_command_line(inside: Path) -> None:
    """AdamW, warmed up to a rate scaled with the minibatch, then annealed; and the same command a second time."""
    arguments = ["train", "recipe.yaml", "--exp", "adamw", "--strategy", "ssgd", "--learners", "2"]
    arguments += ["optimizer.name=adamw", "optimizer.options.weight_decay=1e-2"]
    arguments += ["schedule.rule=anneal", "schedule.learning_rate=1e-3", "schedule.base_minibatch=32"]
    arguments += ["schedule.warmup_epochs=0.5", "schedule.anneal_from=2"]
    assert main(arguments) == 0
    recipe = yaml.safe_load((inside / "adamw" / "recipe.yaml").read_text())
    assert recipe["optimizer"] == {"name": "adamw", "options": {"weight_decay": "1e-2"}}
    segments = of_kind(read_events(inside / "adamw" / "events.jsonl"), Segment)
    assert [s.learning_rate for s in segments] == pytest.approx([2e-3, 2e-3, 2e-3 * 0.5**0.5])
    assert segments[-1].loss < segments[0].loss
    assert main(arguments) == 0


def test_a_recipe_s_objective_reaches_the_learners(inside: Path) -> None:
    """Another gradient at the same point, and the same report."""
    found = []
    for objective in ("cross-entropy", "smoothed"):
        learner = make_job(load_recipe("recipe.yaml", [f"training.objective={objective}"])).cluster.task.build()
        epoch, out = EpochPlan(0, learner.examples, 64, 1, 0), torch.zeros(learner.parameters)
        learner.gradient(learner.initial(), epoch.piece(0), epoch, out)
        found.append((out, learner.evaluate(learner.initial(), "dev")))
    (plain, reported), (smoothed, again) = found
    assert not torch.allclose(smoothed, plain, rtol=1e-2)
    assert (again.frames, again.correct) == (reported.frames, reported.correct)
    assert again.loss == pytest.approx(reported.loss, rel=1e-6)


def test_scales_of_features_are_measured_once_a_run(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners that are built later, of the same task in another process too, have those of the first."""
    task = make_job(load_recipe("recipe.yaml")).cluster.task
    first = task.build()
    monkeypatch.setattr(Frontend, "fit_scale", None)
    for later in (task.build(), pickle.loads(pickle.dumps(task)).build()):
        assert isinstance(first, ModuleLearner)
        assert isinstance(later, ModuleLearner)
        assert torch.equal(later.module.frontend.scale, first.module.frontend.scale)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["replay", "data"], "nothing to repeat"),
        (["train", "recipe.yaml", "--exp", "x", "--runtime", "sim", "--record"], "training.record"),
        (["train", "recipe.yaml", "--exp", "x", "--strategy", "sgd", "--learners", "2"], "for one learner"),
        (["train", "recipe.yaml", "--exp", "x", "--straggler", "9:3x"], "stragglers [9] do not exist"),
        (["train", "recipe.yaml", "--exp", "x", "optimizer.name=lbfgs"], "it cannot update a vector in pieces"),
        (["train", "recipe.yaml", "--exp", "x", "--resume"], "x: nothing to resume"),
        (
            ["train", "recipe.yaml", "--exp", "x", "--strategy", "adpsgd", "--on-death", "shrink"],
            "on_death is 'shrink'",
        ),
        (["train", "recipe.yaml", "--exp", "x", "corpus=nowhere"], "nowhere"),
        (["train", "recipe.yaml", "--exp", "x", "alignment=nowhere"], "nowhere"),
        (["train", "recipe.yaml", "--exp", "data"], "not a run directory"),
        (["decode", "data"], "not a run directory"),
        (["report", "data"], "data"),
    ],
)
def test_bad_input_is_named_and_nothing_is_left_behind(
    inside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert main(arguments) == 2
    assert named in capsys.readouterr().err
    assert not (inside / "x" / "checkpoints").exists()


def test_a_job_can_be_made_for_fewer_learners(inside: Path) -> None:
    overrides = ["training.strategy=ssgd", "training.learners=3", "training.stragglers=['0:2x', '2:3x']"]
    job = make_job(load_recipe("recipe.yaml", [*overrides, "training.on_death=shrink"]))
    assert job.after_death == "shrink"
    assert job.with_learners is not None
    fewer = job.with_learners(2)
    assert [s.rank for s in fewer.cluster.stragglers] == [0]
    assert (fewer.cluster.learners, fewer.recipe["training"]["learners"]) == (2, 2)
    assert fewer.recipe["training"]["stragglers"] == ["0:2x"]
    with pytest.raises(UserError, match="at least one"):
        job.with_learners(0)


def test_a_training_goes_on_with_other_learners(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "recipe.yaml", "--exp", "resized", "--runtime", "sim", "--strategy", "bmuf"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Run, "_finish", lambda _: None)  # stopped just before its end
        assert main([*arguments, "--learners", "3"]) == 130
    assert main([*arguments, "--learners", "2", "--resume"]) == 0
    (changed,) = of_kind(read_events(inside / "resized" / "events.jsonl"), LearnersChanged)
    assert (changed.before, changed.after) == (3, 2)
    assert "block_anchor" in changed.what
    assert "2 learners go on where 3 stopped" in " ".join(capsys.readouterr().out.split())


def test_decoding_needs_a_trained_model(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "empty").mkdir(exist_ok=True)
    (inside / "empty" / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    assert main(["decode", "empty"]) == 2
    assert "no trained model here" in capsys.readouterr().err
