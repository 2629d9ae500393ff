"""A claim about trainings, run on a corpus of beeps: its table, its verdict, and that a second call only reads."""

from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.job import Interrupt
from roundelay_lab.claims.claim import Claim, read_claim
from roundelay_lab.claims.evidence import read_evidence
from roundelay_lab.claims.page import Settled, page
from roundelay_lab.claims.rule import Judgement, Verdict, measured
from roundelay_lab.claims.running import run_claim, run_regime
from roundelay_lab.claims.speech import ClaimFolders, Ways

CLAIM = """
number: 99
title: Averages of models learn
citation: {paper: A paper, place: its end, says: They do.}
experiment:
  kind: trainings
  recipe: an4
  runs: small
  overrides: ["model={name: dnn, layers: 1, width: 8, context: 0}", schedule.max_epochs=1, training.minibatch=256]
  seeds: 1
  target: 100.0
  parts:
    - strategies: [bsp, bmuf]
      learners: [2]
      overrides: ["strategy.period=1,5"]
      tune: ["schedule.learning_rate=0,0.05"]
rule:
  shown: [{says: bsp learns, column: dev, rows: {strategy: bsp}, over: {strategy: sgd}, at_most: 2}]
  refuted: [{says: it does not, column: dev, rows: {strategy: bsp}, over: {strategy: sgd}, at_least: 9}]
landing: [{column: dev, within: 0.01}]
"""


@pytest.fixture
def folders(folder: Path, tmp_path: Path) -> ClaimFolders:
    """A folder in which AN4 is the corpus of beeps, prepared and aligned."""
    corpora = tmp_path / "claims" / "corpora" / "an4"
    corpora.mkdir(parents=True)
    (corpora / "data").symlink_to(folder / "data")
    (corpora / "alignment").symlink_to(folder / "alignment")
    return ClaimFolders(tmp_path / "claims")


def quietly(interrupt: Interrupt, told: list[str] | None = None) -> Ways:
    return Ways(Silent(), (lambda _: None) if told is None else told.append, interrupt)


def test_a_table_of_trainings_and_its_verdict(folders: ClaimFolders) -> None:
    """Seed 0 chooses the rate that learns, seed 1 judges; one learner stands once beside both strategies."""
    claim: Claim = read_claim("small", CLAIM)
    told: list[str] = []
    evidence = run_claim(claim, folders, quietly(Interrupt(), told))
    assert evidence is not None
    assert evidence.keys == ("strategy", "learners", "period")
    names = [(row["strategy"], row["learners"], row.get("period"), row["seed"]) for row in evidence.rows]
    assert sorted(names, key=str) == sorted(
        [("sgd", 1, None, 1), *((name, 2, period, 1) for name in ("bsp", "bmuf") for period in (1, 5))], key=str
    )
    assert {row["learning_rate"] for row in evidence.rows} == {0.05}
    assert {row["seed"] for row in evidence.tuning} == {0}
    assert len(evidence.tuning) == 2 * len(evidence.rows)
    assert evidence.verdict == "open"  # one seed says nothing of the spread
    assert evidence.command == "roundelay claims run small --source DIR"
    assert read_evidence(folders.out / "small" / "evidence.json") == evidence
    assert len(measured(evidence.rows, evidence.keys, "dev", {"strategy": "bsp"}, {"strategy": "sgd"})) == 2
    again: list[str] = []
    assert run_claim(claim, folders, quietly(Interrupt(), again)) == evidence
    assert all("there already" in line for line in again if "/" in line.split()[0])


def test_a_regime_is_measured_beside_every_minibatch(folders: ClaimFolders) -> None:
    """At the end of each epoch; gone on with after an interrupt; read by a second call."""
    regime = """
regime:
  overrides: ["training.minibatch=128,256"]
  tune: ["schedule.learning_rate=0,0.05"]
  seeds: 1
  groups: 4
  size: 16
"""
    claim = read_claim("small", CLAIM.replace("max_epochs=1, training.minibatch=256", "max_epochs=2") + regime)
    stopped, told = Interrupt(), list[str]()
    stopped.asked = True
    assert run_regime(claim, folders, quietly(stopped)) is None
    found = run_regime(claim, folders, quietly(Interrupt(), told))
    assert found is not None
    assert [(row["minibatch"], row["epoch"]) for row in found.rows] == [(128, 1), (128, 2), (256, 1), (256, 2)]
    assert all(row["ratio"] == pytest.approx(row["minibatch"] / row["noise_scale"], rel=1e-4) for row in found.rows)
    assert found.rows[1]["dev"] < found.rows[0]["dev"]
    assert found.rows[1]["updates"] == 2 * found.rows[0]["updates"] > 2 * found.rows[2]["updates"]
    assert found.rows[0]["learning_rate"] == 0.05
    assert found.command == "roundelay claims regime small --source DIR"
    assert run_regime(claim, folders, quietly(Interrupt())) == found
    assert "| 128 | 1 | 0.05 |" in page([Settled(claim, None, Judgement(Verdict.OPEN), found)])
    with pytest.raises(UserError, match="no regime"):
        run_regime(read_claim("small", CLAIM), folders, quietly(Interrupt()))


def test_few_learners_on_processes_come_to_what_the_simulator_says(folders: ClaimFolders) -> None:
    """Two learners and one are processes, three are simulated; one learner, which is beside both, stands once."""
    text = CLAIM.replace('      tune: ["schedule.learning_rate=0,0.05"]\n', "").replace("[bsp, bmuf]", "[bsp]")
    text = text.replace('["strategy.period=1,5"]', '["strategy.period=5", schedule.learning_rate=0.05]')
    simulated = run_claim(read_claim("small", text.replace("[2]", "[2, 3]")), folders, quietly(Interrupt()))
    processes = text.replace("[2]", "[2, 3]").replace("  seeds: 1", "  seeds: 1\n  processes_up_to: 2")
    found = run_claim(read_claim("processes", processes), folders, quietly(Interrupt()))
    assert simulated is not None
    assert found is not None
    losses = [{row["learners"]: row["dev"] for row in one.rows} for one in (simulated, found)]
    assert losses[0] == losses[1]
    assert {row["learners"]: "seconds" in row for row in found.rows} == {1: False, 2: False, 3: True}
    assert len(found.rows) == len(simulated.rows) == 3
    assert found.definition != simulated.definition


def test_trainings_that_fail_are_named(folders: ClaimFolders) -> None:
    impossible = CLAIM.replace("training.minibatch=256", "training.minibatch=100000000")
    with pytest.raises(UserError, match="trainings failed"):
        run_claim(read_claim("small", impossible), folders, quietly(Interrupt()))
