"""Acoustic models by the command line: trained, kept, loaded, decoded. Other kinds go that way in test_live.py and
test_named_corpora.py."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from roundelay.checkpoint import load_checkpoint
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.core.flat import flatten
from roundelay.runtime.trace import read_entries
from roundelay_speech.acoustic import TRACE, make_job
from roundelay_speech.recipes.recipe import load_recipe
from roundelay_speech.trained import load_model

CLDNN = {
    "name": "cldnn",
    "maps": 8,
    "context": 2,
    "pool": 4,
    "dense_layers": 1,
    "width": 48,
    "lstm_layers": 1,
    "cells": 32,
    "projection": 24,
    "chunk": 10,
    "warmup": 10,
    "dropout": 0.1,
}
ADAM = ["optimizer={name: adam}", "schedule.learning_rate=0.01", "training.clip=1.0", "schedule.max_epochs=4"]


def test_from_a_recipe_to_word_errors(inside: Path) -> None:
    model = yaml.safe_dump(CLDNN, default_flow_style=True, width=10_000).strip()
    learners = ["--strategy", "ssgd", "--learners", "2", "--runtime", "sim"]
    assert main(["train", "recipe.yaml", "--exp", "cldnn", *learners, f"model={model}", *ADAM]) == 0
    found = load_model(Path("cldnn"))
    last = load_checkpoint(Path("cldnn/checkpoints/epoch-0004.json"))
    assert torch.equal(flatten(found.module), last.state.vectors["row"].mean(0))
    assert main(["decode", "cldnn"]) == 0
    results = json.loads((inside / "cldnn/results.json").read_text())
    assert results["wer"]["test"]["wer"] <= 40
    assert results["frame_accuracy"]["dev"] > 0.5
    assert {"frontend.matrix", "frontend.scale", "output.weight", "prior"} <= set(load_file("cldnn/model.safetensors"))


def test_a_model_of_an_earlier_version_has_no_name_and_is_a_dnn(inside: Path) -> None:
    assert main(["train", "recipe.yaml", "--exp", "old", "--runtime", "sim", "schedule.max_epochs=1"]) == 0
    meta = read_json(Path("old/model.json"))
    before = load_model(Path("old"))
    path = Path("old/model.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(UserError, match=r"old/model\.safetensors: damaged, .*train again"):
        load_model(Path("old"))
    path.write_bytes(whole)
    del meta["model"]["name"], meta["checksums"]
    write_json(Path("old/model.json"), meta)
    assert torch.equal(flatten(load_model(Path("old")).module), flatten(before.module))
    meta["model"]["name"] = "blstm"
    write_json(Path("old/model.json"), meta)
    with pytest.raises(UserError, match=r"old/model\.json"):
        load_model(Path("old"))


def test_learners_have_the_threads_that_a_recipe_gives_them(inside: Path, tmp_path: Path) -> None:
    """They are not what its cores would be shared out to."""
    recipe = load_recipe("recipe.yaml", ["training.threads=3", "training.record=true"])
    job = make_job(recipe, tmp_path)
    with job.make_runtime(job.cluster):
        pass
    assert next(read_entries(tmp_path / TRACE))["threads"] == 3
    with pytest.raises(UserError, match=r"training\.threads is 0"):
        load_recipe("recipe.yaml", ["training.threads=0"])
