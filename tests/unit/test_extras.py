"""Extras: training other people's modules needs none of them, and a missing one is named before anything begins."""

import importlib.util
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.extras import MODULES, Binding, load, need
from support.processes import run_python

ROOT = Path(__file__).parents[2]
PROJECTS: dict[str, dict[str, Any]] = {
    name: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for name, folder in (("roundelay", ROOT), ("roundelay-speech", ROOT / "speech"))
}
PROJECT = PROJECTS["roundelay"]
EVERY = sorted({module for modules in MODULES.values() for module in modules})
SCRIPT = """
import importlib, os, pkgutil, sys, roundelay

for module in pkgutil.walk_packages(roundelay.__path__, "roundelay."):
    for_gpus = "roundelay.algorithms.one_pass_kernel"  # Triton comes with torch for CUDA
    toolkit = module.name.startswith("roundelay.integrations.")  # each imports the toolkit that it is for
    if not toolkit and module.name not in ("roundelay.__main__", for_gpus):
        importlib.import_module(module.name)
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(64, 3)
before = model(inputs).square().mean().item()
session = roundelay.attach(model, optimizer, strategy="adpsgd")
for batch in inputs.split(8):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
session.close()
assert model(inputs).square().mean().item() < before
(simulated,) = roundelay.simulate("ssgd", learners=2, rounds=3)
two_hosts = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": "29500", "ROUNDELAY_SECRET": "of the run" * 5}
for refused in (
    lambda: roundelay.prepare("an4"),
    lambda: roundelay.align("an4"),
    lambda: roundelay.decode("exp"),
    lambda: roundelay.transcribe("model", "talk.wav"),
    lambda: roundelay.load_model("model"),
    lambda: roundelay.export("exp", "out"),
    lambda: roundelay.scaling("an4"),
    lambda: roundelay.scaling(roundelay.__file__, overrides=["{strategy}", "{rate}", "{seed}"]),  # a script needs rates
    lambda: os.environ.update(two_hosts) or roundelay.attach(model, optimizer, strategy="adpsgd"),
):
    try:
        refused()
    except roundelay.UserError as error:
        print(error)
"""


def installed_by(extra: str, package: str = "roundelay") -> set[str]:
    """Modules of the packages that an extra asks for, those of extras that it includes too."""
    found = set()
    for requirement in PROJECTS[package]["optional-dependencies"][extra]:
        if included := re.fullmatch(r"(roundelay|roundelay-speech)\[(.*)\]", requirement):
            found |= {included[1].replace("-", "_")} - {"roundelay"}
            found |= {module for name in included[2].split(",") for module in installed_by(name, included[1])}
        else:
            found.add(re.split(r"[^\w.-]", requirement)[0].replace("-", "_"))
    return found


def test_nothing_but_speech_needs_speech(tmp_path: Path) -> None:
    """All modules are imported, a loop is trained and a cluster simulated where no package of an extra can be."""
    gone = f"import sys\nsys.modules.update(dict.fromkeys({EVERY!r}))\n"
    (tmp_path / "sitecustomize.py").write_text(gone)  # every process of Python begins with it
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = run_python("-c", SCRIPT, where=tmp_path, env={**os.environ, "PYTHONPATH": paths})
    speech = "needs the package roundelay-speech: pip install 'roundelay[speech]'."
    named = [
        f"roundelay.{name} {speech}" for name in ("prepare", "align", "decode", "transcribe", "load_model", "export")
    ]
    hosts = "rank 0: training on several hosts needs the package cryptography: pip install 'roundelay[hosts]'."
    *said, script, last = done.stdout.splitlines()[-9:]
    assert said == [*named, f"scaling of a recipe {speech}"]
    assert script.endswith(": give the learning rates that are to be tried, as --rates 0.01,0.02,0.04.")
    assert last == hosts


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("storm demo --out out", "storm needs the package cryptography: pip install 'roundelay[hosts]'."),
        ("demo", "demo needs the package espeakng-loader: pip install 'roundelay[demo]'."),
        ("export onnx exp --out out", "export onnx needs the package onnxscript: pip install 'roundelay[export]'."),
    ],
)
def test_some_options_need_an_extra(
    words: str, needed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (package,) = re.findall(r"package (\S+):", needed)
    gone = package.replace("-", "_")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == gone else object())
    assert main(words.split()) == 2
    assert " ".join(capsys.readouterr().err.split()).endswith(needed)


def test_serve_alone_needs_what_serves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "starlette" else object())
    assert main(["serve", "model"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("serve needs the package starlette: pip install 'roundelay[serve]'.")
    assert main(["transcribe", "model", "talk.wav"]) == 2
    assert "starlette" not in capsys.readouterr().err


def test_the_package_asks_for_none_of_them() -> None:
    asked = {re.split(r"[^\w.-]", requirement)[0].replace("-", "_") for requirement in PROJECT["dependencies"]}
    assert not asked & set(EVERY)


@pytest.mark.parametrize("extra", sorted(MODULES))
def test_an_extra_brings_what_is_looked_for(extra: str) -> None:
    assert set(MODULES[extra]) <= installed_by(extra)
    assert installed_by(extra) <= installed_by("all")


def test_every_extra_that_is_named_exists() -> None:
    texts = [
        path.read_text()
        for folder in ("src", "speech", "docs", "examples")
        for path in (ROOT / folder).rglob("*.[mp][dy]")
    ]
    named = {extra for text in texts for extra in re.findall(r"roundelay\[(\w+)\]", text)}
    assert {"speech", "demo"} < named <= set(PROJECT["optional-dependencies"])


def test_a_module_is_loaded_when_it_is_used() -> None:
    later = Binding("colorsys", "speech")
    sys.modules.pop("colorsys", None)
    assert not hasattr(later, "__wrapped__")
    assert "colorsys" not in sys.modules
    assert later.rgb_to_hsv(0.0, 0.0, 1.0)[2] == 1.0
    assert load("colorsys", "speech", "x") is sys.modules["colorsys"]


def test_a_package_that_is_broken_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_binding.py").write_text("import what_it_needs_itself\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs_itself"):
        load("broken_binding", "speech", "x")


def test_nothing_is_said_where_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    need("speech", "decode")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"decode needs the package roundelay-speech"):
        need("speech", "decode")
