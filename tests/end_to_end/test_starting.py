"""Runs that start from another model: from a run's, from a checkpoint, from a first phase that runs share."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from roundelay.checkpoint import load_checkpoint
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.flat import flatten
from roundelay.core.progress import Silent
from roundelay.core.records import Evaluation, Results, RunStarted, of_kind, read_events
from roundelay.job import Interrupt
from roundelay.training import train
from roundelay_speech.acoustic import make_job
from roundelay_speech.recipes.recipe import Recipe, load_recipe
from roundelay_speech.starting import first_phase
from roundelay_speech.trained import load_model
from support.beeps import prepare_beeps
from support.runs import cut

EPOCH = ["training.runtime=sim", "schedule.max_epochs=1", "model.dropout=0.0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of its own: names of runs here are those of tests of other files too."""
    return prepare_beeps(tmp_path_factory.mktemp("starting"))


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    """A finished run of one learner in two epochs, whose absolute path its recipe does not know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        one = ["train", "recipe.yaml", "--exp", "one", *EPOCH, "schedule.max_epochs=2", "schedule.reject_worse=false"]
        assert main(one) == 0
    return folder / "one"


def trained(exp: str, *overrides: str, recipe: str = "recipe.yaml") -> Results | None:
    job = make_job(load_recipe(recipe, [*EPOCH, *overrides]), Path(exp))
    return train(job, Path(exp), Silent(), Interrupt())


def rows_at_the_beginning(exp: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(exp) / "checkpoints" / "epoch-0000.json").state.vectors


def evaluations(exp: Path) -> list[float]:
    return [e.cross_entropy for e in of_kind(read_events(exp / "events.jsonl"), Evaluation) if e.split == "dev"]


@pytest.mark.parametrize("strategy", ["bmuf", "easgd"])
def test_every_learner_starts_from_the_model_and_the_records_say_so(strategy: str, source: Path, inside: Path) -> None:
    exp = f"from-{strategy}"
    options = ["--strategy", strategy, "--learners", "2", "--init", "one"]
    assert main(["train", "recipe.yaml", "--exp", exp, *EPOCH, *options]) == 0
    model = flatten(load_model(source).module)
    found = rows_at_the_beginning(exp)
    for row in (*found["row"], *found.get("centre", ())):
        assert torch.equal(row, model)
    results = Results.from_json(read_json(Path(exp) / "results.json"))
    assert results.started_from == "one/model.safetensors"
    (started,) = of_kind(read_events(Path(exp) / "events.jsonl"), RunStarted)
    assert started.started_from == results.started_from
    before = Results.from_json(read_json(source / "results.json")).frame_cross_entropy["dev"]
    assert evaluations(Path(exp))[0] == pytest.approx(before), "an untrained model would be at chance"


def test_processes_start_where_the_simulator_does_and_a_recorded_run_is_repeated(source: Path, inside: Path) -> None:
    options = ["--strategy", "bmuf", "--learners", "2", "--init", "one/model.safetensors"]
    assert main(["train", "recipe.yaml", "--exp", "virtual", *EPOCH, *options]) == 0
    real = [*EPOCH, "training.runtime=procs", *options, "--record"]
    assert main(["train", "recipe.yaml", "--exp", "real", *real]) == 0
    assert torch.equal(flatten(load_model(Path("real")).module), flatten(load_model(Path("virtual")).module))
    assert main(["replay", "real"]) == 0


def test_a_checkpoint_is_the_model_that_was_evaluated_there(source: Path, inside: Path) -> None:
    losses = evaluations(source)
    trained("from-first", "init.model=one/checkpoints/epoch-0001.json")
    trained("from-best", "init.model=one", "init.which=best")
    assert evaluations(Path("from-first"))[0] == pytest.approx(losses[1])
    assert evaluations(Path("from-best"))[0] == pytest.approx(min(losses))


def test_whoever_goes_on_does_not_look_at_the_source_again(
    source: Path, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(source, "passing")
    with monkeypatch.context() as patch:
        cut(patch, segment=1, rounds=5)
        assert trained("going", "init.model=passing") is None
    shutil.rmtree("passing")
    results = trained("going", "init.model=passing")
    assert results is not None
    assert results.started_from == "passing/model.safetensors"
    assert trained("never-stopped", "init.model=one") is not None
    assert torch.equal(flatten(load_model(Path("going")).module), flatten(load_model(Path("never-stopped")).module))
    with pytest.raises(UserError, match=r"init\.model was 'passing', now None"):
        trained("going")


def test_runs_of_a_comparison_share_a_first_phase(inside: Path) -> None:
    """Li et al. 2017: an epoch of one learner, then every strategy from the same model."""
    first = ["--seeds", "1", "--no-decode", "init.first.epochs=1", *EPOCH]
    assert main(["compare", "recipe.yaml", "--exp", "li", "--strategies", "bmuf", "--learners", "2", *first]) == 0
    (phase,) = Path("li/first").iterdir()
    end = Results.from_json(read_json(phase / "results.json"))
    assert (end.strategy, end.learners, end.epochs) == ("sgd", 1, 1)
    for cell in ("sgd-1-seed0", "bmuf-period-20-2-seed0"):
        results = Results.from_json(read_json(Path("li") / cell / "results.json"))
        assert results.started_from == f"a first phase of 1 epoch on one learner, {phase}"
        assert evaluations(Path("li") / cell)[0] == pytest.approx(end.frame_cross_entropy["dev"])
    before = (phase / "results.json").stat().st_mtime_ns
    assert main(["compare", "recipe.yaml", "--exp", "li", "--strategies", "ssgd", "--learners", "2", *first]) == 0
    assert [(p / "results.json").stat().st_mtime_ns for p in Path("li/first").iterdir()] == [before], "trained once"


def test_a_first_phase_that_was_stopped_is_gone_on_with(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        cut(patch, segment=1, rounds=5)
        assert trained("li/stopped-in-its-first-phase", "init.first.epochs=1", "training.seed=7") is None
    assert trained("li/stopped-in-its-first-phase", "init.first.epochs=1", "training.seed=7") is not None
    (phase,) = [p for p in Path("li/first").iterdir() if "seed: 7" in (p / "recipe.yaml").read_text()]
    assert [start.resumed for start in of_kind(read_events(phase / "events.jsonl"), RunStarted)] == [False, True]


def test_a_first_phase_depends_on_what_decides_it_alone(tmp_path: Path) -> None:
    def phase(first: dict[str, Any], **training: Any) -> tuple[Recipe, Path]:
        given = {"name": "x", "corpus": "d", "alignment": "a", "init": {"first": first}, "training": training}
        path = tmp_path / "x.yaml"
        path.write_text(yaml.safe_dump(given))
        recipe = load_recipe(str(path))
        return first_phase(recipe, recipe.init.first, Path("exp"))

    recipe, exp = phase({"epochs": 1}, strategy="bmuf", learners=4, minibatch_per_learner=64)
    assert (recipe.training.strategy, recipe.training.learners, recipe.training.minibatch) == ("sgd", 1, 64)
    assert (recipe.schedule.max_epochs, recipe.schedule.learning_rate) == (1, 0.02)
    assert phase({"epochs": 1}, strategy="bsp", learners=8, minibatch_per_learner=64)[1] == exp
    assert phase({"epochs": 1}, minibatch_per_learner=32)[1] != exp
    assert phase({"epochs": 1, "minibatch": 64}, minibatch_per_learner=32)[1] == exp
    assert phase({"epochs": 1, "learning_rate": 0.1}, minibatch_per_learner=64)[0].schedule.learning_rate == 0.1


def test_another_alignment_needs_a_new_output_layer(source: Path, inside: Path) -> None:
    small = ["alignment=alignment-small", "align.tied_states=25"]
    assert main(["align", "recipe.yaml", *small]) == 0
    with pytest.raises(UserError, match=r"one/model\.safetensors was trained on other tied states than .*output=new"):
        trained("tuned", *small, "init.model=one")
    with pytest.raises(UserError, match=r"epoch-0002\.json was trained on other tied states"):
        trained("tuned", *small, "init.model=one/checkpoints/epoch-0002.json")
    results = trained("tuned", *small, "init.model=one", "init.output=new")
    assert results is not None
    assert results.started_from == "one/model.safetensors, new output layer"
    trained("own", *small)
    trained("tuned-too", *small, "init.model=one/checkpoints/epoch-0002.json", "init.output=new")
    ours, fresh = rows_at_the_beginning("tuned")["row"][0], rows_at_the_beginning("own")["row"][0]
    assert torch.equal(ours, rows_at_the_beginning("tuned-too")["row"][0])
    theirs = flatten(load_model(source).module)
    hidden = len(theirs) - sum(len(p.flatten()) for p in load_model(source).module.net[-1].parameters())  # type: ignore
    assert torch.equal(ours[:hidden], theirs[:hidden])
    assert torch.equal(ours[hidden:], fresh[hidden:])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["init.model=nowhere"], "init.model: nowhere is no run directory"),
        (["init.model=data"], "init.model: data is no run directory: it has neither model.safetensors nor recipe.yaml"),
        (["init.model=data", "init.which=best"], "data has no checkpoint"),
        (["init.model=one", "init.first.epochs=1"], "a run starts from one of them"),
        (["init.model=one", "model.width=32"], r"net\.0\.weight is 64 x .* there and 32 x .* here.*section `model`"),
        (["init.model=one", "model.layers=2", "init.output=new"], r"net\.2\.weight is 3. x 64 there and 64 x 64 here"),
        (["init.model=one/checkpoints/epoch-0002.json", "model.width=32"], "it is of another network"),
        (["init.first.epochs=-1"], "init.first.epochs is -1"),
        (["init.modell=one"], "unknown option init.modell; did you mean model"),
    ],
)
def test_what_does_not_fit_is_named(options: list[str], complaint: str, source: Path, inside: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        trained("misfit", *options)
    assert not Path("misfit").exists(), "nothing was begun"


def test_the_command_line_takes_the_place_of_a_first_phase(inside: Path) -> None:
    assert load_recipe("recipe.yaml", ["init.first.epochs=2"]).init.model is None
    given = yaml.safe_load(Path("recipe.yaml").read_text())
    Path("phased.yaml").write_text(yaml.safe_dump({**given, "init": {"first": {"epochs": 2}}}))
    init = load_recipe("phased.yaml", ["init.model=one"]).init
    assert (init.model, init.first.epochs) == (Path("one"), 0)
