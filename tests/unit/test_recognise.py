"""Runs that are decoded together: which fit, and what their mean is."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay_speech.commands.recognition import weighted
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.recognition import loglikelihoods
from support.toy_speech import tying

TIED = tying(3)


@dataclass(frozen=True)
class Fake:
    """Runs by name: what stands for their log-likelihoods, and their tied states."""

    scores: dict[str, np.ndarray[Any, Any]]
    tied: dict[str, Tying]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        prior = np.zeros(TIED.num_pdfs, np.float32)
        monkeypatch.setattr(
            loglikelihoods,
            "load_model",
            lambda exp: SimpleNamespace(
                module=exp.name, prior=prior, features=lambda corpus, _exp, _splits: corpus.name
            ),
        )
        monkeypatch.setattr(
            Alignment,
            "load",
            lambda folder: SimpleNamespace(num_pdfs=TIED.num_pdfs, tying=self.tied[folder.name]),
        )
        monkeypatch.setattr(loglikelihoods, "load_corpus", lambda folder: SimpleNamespace(name=folder.name, splits={}))
        monkeypatch.setattr(
            loglikelihoods, "log_likelihoods", lambda module, _store, _utterance, _prior: self.scores[module].copy()
        )


def recipe(name: str) -> Recipe:
    return Recipe(name, Path(name), Path(name))


def test_weighted_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (np.full((4, TIED.num_pdfs), value, np.float32) for value in (1.0, 2.0, 4.0))
    Fake({"a": a, "b": b, "c": c}, {"a": TIED, "b": TIED, "c": TIED}).install(monkeypatch)
    others = [(Path("b"), recipe("b"), 1.0), (Path("c"), recipe("c"), 2.0)]
    members = loglikelihoods.ensemble(Path("a"), recipe("a"), others)
    assert [member.weight for member in members] == [0.25, 0.25, 0.5]
    assert loglikelihoods.mean_of(members, "u") == pytest.approx(np.full_like(a, 0.25 + 0.5 + 2.0))
    alone = loglikelihoods.ensemble(Path("a"), recipe("a"), [])
    assert [member.weight for member in alone] == [1.0]


def test_runs_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TIED.table.copy()
    table[1, 2, 3] = table[1, 2, 3, ::-1]
    short, long = np.zeros((4, TIED.num_pdfs), np.float32), np.zeros((5, TIED.num_pdfs), np.float32)
    fake = Fake({"a": short, "b": long}, {"a": TIED, "b": TIED, "c": replace(TIED, table=table)})
    fake.install(monkeypatch)
    with pytest.raises(UserError, match="c: other tied states"):
        loglikelihoods.ensemble(Path("a"), recipe("a"), [(Path("c"), recipe("c"), 1.0)])
    with pytest.raises(UserError, match="must be above 0"):
        loglikelihoods.ensemble(Path("a"), recipe("a"), [(Path("b"), recipe("b"), 0.0)])
    members = loglikelihoods.ensemble(Path("a"), recipe("a"), [(Path("b"), recipe("b"), 1.0)])
    with pytest.raises(UserError, match="u: 5 frames in b, 4 in a"):
        loglikelihoods.mean_of(members, "u")


def test_weights_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:2").mkdir()
    assert weighted("exp/b") == (Path("exp/b"), 1.0)
    assert weighted("exp/b:0.5") == (Path("exp/b"), 0.5)
    assert weighted("odd:2") == (Path("odd:2"), 1.0)
    with pytest.raises(UserError, match="EXP:WEIGHT"):
        weighted("exp/b:much")
