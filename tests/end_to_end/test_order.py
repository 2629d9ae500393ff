"""The order of an epoch, from the recipe to the model."""

from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from roundelay.core.configure import read_yaml
from roundelay.core.records import RunStarted, Segment, of_kind, read_events
from roundelay_speech.recipes.recipe import LARGE_HOURS, kept_recipe, load_recipe, with_order
from roundelay_speech.training_index import FOLDER

SHORT = ("recipe.yaml", "schedule.max_epochs=1", "training.minibatch=64")


def train(exp: Path, *options: str) -> None:
    assert main(["train", *SHORT, *options, "--exp", str(exp)]) == 0


@pytest.mark.parametrize("model", ["dnn", "blstm"])
def test_blocks_lead_to_one_model_on_any_runtime(model: str, inside: Path, tmp_path: Path) -> None:
    network = {"dnn": (), "blstm": ("model={name: blstm, layers: 1, cells: 8}",)}[model]
    blocks = ("training.order=blocks", *network, "--strategy", "ssgd", "--learners", "2")
    train(tmp_path / "procs", *blocks)
    train(tmp_path / "sim", *blocks, "--runtime", "sim")
    models = [(tmp_path / exp / "model.safetensors").read_bytes() for exp in ("procs", "sim")]
    assert models[0] == models[1]
    assert (inside / "alignment" / FOLDER).is_dir()
    events = read_events(tmp_path / "procs" / "events.jsonl")
    trained = of_kind(events, RunStarted)[0].train_frames
    assert sum(sum(one.learner_frames) for one in of_kind(events, Segment)) == trained


def test_a_run_keeps_the_order_that_its_corpus_had_and_earlier_ones_shuffle(inside: Path, tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    train(exp)
    kept = read_yaml(exp / "recipe.yaml")
    assert kept["training"].pop("order") == "shuffle"
    (exp / "recipe.yaml").write_text(yaml.safe_dump(kept))  # as an earlier version wrote it
    assert kept_recipe(exp).training.order == "shuffle"
    train(exp)  # and it is the same run


def test_large_corpora_are_drawn_in_blocks(inside: Path) -> None:
    recipe = load_recipe("recipe.yaml")
    for hours, order in ((LARGE_HOURS - 1, "shuffle"), (LARGE_HOURS, "blocks")):
        assert with_order(recipe, hours).training.order == order
    for asked in ("shuffle", "blocks"):
        told = load_recipe("recipe.yaml", [f"training.order={asked}"])
        assert with_order(told, LARGE_HOURS).training.order == with_order(told, 0.0).training.order == asked
