"""Claims: every file is one, a verdict follows from rule and table alone, and the page says what the evidence says."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.grids.running import run_grid
from roundelay.job import Interrupt
from roundelay.runtime.base import wall_clock
from roundelay.strategies import make_strategy
from roundelay_lab.claims.claim import Check, Claim, Landing, Rule, find_claim, load_claims, read_claim
from roundelay_lab.claims.evidence import (
    Evidence,
    fixed_before,
    judged,
    load_evidence,
    load_regime,
    read_evidence,
)
from roundelay_lab.claims.experiment import Mixing, Piece, Printed, Row, Scenarios, Trainings
from roundelay_lab.claims.noise import noise_scale
from roundelay_lab.claims.page import BESIDE, DRAWN, PAGE, draw, measured_table, page, settled
from roundelay_lab.claims.rule import Verdict, configuration, judge, landings, measured
from roundelay_lab.claims.running import Kept, run_claim
from roundelay_lab.claims.simulations import mixing_pieces, printed_pieces, scenario_pieces, settled_on_paper
from roundelay_lab.claims.speech import ClaimFolders, Tables, Ways, grid_of

ROOT = Path(__file__).parents[2]
KEYS = ("strategy", "learners")
SVG = "{http://www.w3.org/2000/svg}"

SMALL = """
number: 99
title: Slow learners
citation: {paper: A paper, place: its end, says: A ring copes.}
experiment: {kind: scenarios, strategies: [ssgd, adpsgd], learners: [4], factors: [1, 10], seeds: [1, 2], rounds: 40}
rule:
  shown:
    - {says: it copes, column: seconds, rows: {strategy: adpsgd, factor: 10}, over: {factor: 1}, same: [strategy],
       at_most: 2}
  refuted:
    - {says: it does not, column: seconds, rows: {strategy: adpsgd, factor: 10}, over: {factor: 1}, same: [strategy],
       at_least: 5}
landing: [{column: seconds, within: 0.01}]
figure: {x: factor, y: seconds, lines: [strategy]}
"""


def table(**losses: list[float | None]) -> list[Row]:
    """A row for each strategy and seed."""
    return [
        {"strategy": name, "learners": 4, "seed": seed, "dev": loss}
        for name, values in losses.items()
        for seed, loss in enumerate(values)
    ]


def check(**options: object) -> Check:
    return Check(**{"says": "it is so", "column": "dev", "rows": {"strategy": "bmuf"}, **options})  # type: ignore[arg-type]


# The catalogue --------------------------------------------------------------------------------------------------------


def test_every_claim_has_a_number_and_a_name_of_its_own() -> None:
    claims = load_claims()
    assert len({claim.number for claim in claims}) == len({claim.name for claim in claims}) == len(claims)
    assert find_claim(claims[0].name) == find_claim(str(claims[0].number)) == claims[0]


def test_claims_that_share_runs_begin_with_the_same_recipe() -> None:
    """A directory's name leaves out what the recipe has anyway: another recipe would claim the same directory."""
    shared: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for claim in load_claims():
        if isinstance(one := claim.experiment, Trainings):
            shared.setdefault(one.runs, set()).add((one.recipe, one.overrides))
    assert {runs: recipes for runs, recipes in shared.items() if len(recipes) > 1} == {}


def test_evidence_is_of_the_claim_as_it_is_defined_and_has_its_verdict() -> None:
    """The verdict in the file is the one that rule and table come to; and a table is whole."""
    names = {claim.name for claim in load_claims()}
    files = (ROOT / "lab" / "src" / "roundelay_lab" / "claims" / "evidence").glob("*.json")
    regimes = {f"{claim.name}-regime" for claim in load_claims() if claim.regime}
    assert {path.stem for path in files} <= names | regimes
    for claim in load_claims():
        if (regime := load_regime(claim)) is not None:
            assert (regime.claim, regime.command) == (claim.name, claim.regime_command)
        evidence = load_evidence(claim)
        if evidence is not None:
            assert evidence.claim == claim.name
            assert judged(claim, evidence).verdict.value == evidence.verdict
            assert claim.experiment is not None
            assert evidence.keys == claim.experiment.keys
            assert evidence.command == claim.command


def test_the_page_says_what_catalogue_and_evidence_say() -> None:
    """`roundelay claims write` makes it."""
    found = settled()
    assert (ROOT / "docs" / PAGE).read_text() == page(found)
    drawn = {one.claim.name: draw(one.claim, one.evidence) for one in found if one.evidence is not None}
    for name, svg in drawn.items():
        if svg:
            assert (ROOT / "docs" / DRAWN / f"{name}.svg").read_text() == svg
    assert {p.stem for p in (ROOT / "docs" / DRAWN).glob("*.svg")} == {name for name, svg in drawn.items() if svg}


def test_the_list_shows_every_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims"]) == 0
    said = capsys.readouterr().out
    for claim in load_claims():
        assert claim.name in said
        assert claim.title in said


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("at_most: 2", "at_mostly: 2"), "rule.shown\\[0\\].at_mostly"),
        (("at_most: 2", "at_most: 2, at_least: 1"), "one of at_most and at_least"),
        (("landing: ", "# "), "how near a rerun must come"),
        (("kind: scenarios", "kind: guesses"), "experiment.kind"),
    ],
)
def test_a_fault_in_a_file_is_named(change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        read_claim("small", SMALL.replace(*change))


def test_evidence_of_another_experiment_does_not_count() -> None:
    claim = read_claim("small", SMALL)
    evidence = Evidence("small", claim.definition, claim.bounds, "shown", "", 0.0, "", "", ("strategy",), ())
    with pytest.raises(UserError, match="another experiment"):
        judged(read_claim("small", SMALL.replace("rounds: 40", "rounds: 50")), evidence)


def test_bounds_that_were_changed_after_a_run_are_not_called_fixed_before() -> None:
    claim = read_claim("small", SMALL)
    evidence = Evidence("small", claim.definition, claim.bounds, "shown", "", 0.0, "", "", ("strategy",), ())
    assert fixed_before(claim, evidence)
    assert fixed_before(read_claim("small", SMALL.replace("it copes", "it copes well")), evidence)
    assert not fixed_before(read_claim("small", SMALL.replace("at_most: 2", "at_most: 3")), evidence)
    assert not fixed_before(read_claim("small", f"{SMALL}fixed: after"), evidence)


@pytest.mark.parametrize("claim", [claim for claim in load_claims() if claim.rule], ids=lambda claim: claim.name)
def test_a_rule_is_about_rows_that_the_experiment_has(claim: Claim, tmp_path: Path) -> None:
    """Every check selects some, every divisor is one, and the figure has its lines: not found out after hours."""
    rows = table_to_come(claim, tmp_path)
    assert claim.experiment is not None
    assert claim.rule is not None
    keys = claim.experiment.keys
    judge(claim.rule, rows, keys)
    for row in rows:
        assert row["strategy"]
        assert configuration(row, keys)
    assert len({(configuration(row, keys), row.get("seed")) for row in rows}) == len(rows)
    if claim.figure is not None:
        figure = claim.figure
        assert measured(rows, keys, figure.y, figure.rows, figure.over, figure.same)
        assert {figure.x, *figure.lines} <= set(keys)


def table_to_come(claim: Claim, folder: Path) -> list[Row]:
    """The rows of an experiment that has not been run: keys alone, so that every column diverged."""
    match claim.experiment:
        case Trainings() as experiment:
            stopped = Interrupt()
            stopped.asked = True
            tables = Tables(experiment)
            data = {"corpus": folder / "data", "alignment": folder / "alignment"}
            for part, strategy in experiment.grids:
                grid = grid_of(experiment, part, strategy, data, ClaimFolders(folder))
                tables.add(part, strategy, grid, run_grid(grid, False, Silent(), lambda _: None, stopped))
            return [*tables.rows.values()]
        case Printed() as experiment:
            return [piece.key for piece in printed_pieces(experiment)]
        case Scenarios() as experiment:
            return [piece.key for piece in scenario_pieces(experiment)]
        case Mixing() as experiment:
            return [piece.key for piece in mixing_pieces(experiment)]
    raise AssertionError(claim.name)


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("stragglers", range(101, 111)),
        ("spectral-gap", range(101, 111)),
        ("rings", range(102, 105)),
        ("ssgd-diverges", range(101, 104)),
    ],
)
def test_other_seeds_are_as_many_and_all_else_is_the_same(name: str, seeds: range, tmp_path: Path) -> None:
    """Counted from the first; where a rate is tuned the first one tunes, and those after it judge."""
    claim = find_claim(name)
    other = claim.with_seeds(101)
    assert claim.experiment is not None
    keys = claim.experiment.keys
    had, found = table_to_come(claim, tmp_path), table_to_come(other, tmp_path)
    assert {row["seed"] for row in found} == set(seeds)
    assert {configuration(row, keys) for row in found} == {configuration(row, keys) for row in had}
    assert len(found) == len(had)
    assert other.definition != claim.definition  # so it never counts as the evidence


def test_printed_numbers_have_no_seeds() -> None:
    with pytest.raises(UserError, match="leave --first-seed out"):
        find_claim("li-speedups").with_seeds(101)


# Verdicts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "verdict"), [(2.05, "shown"), (2.08, "not shown"), (2.3, "refuted"), (None, "refuted")]
)
def test_a_verdict_by_ratios_to_the_same_seed(loss: float | None, verdict: str) -> None:
    """Seeds differ by far more than strategies do."""
    rows = table(sgd=[2.0, 1.0, 4.0], bmuf=[loss and loss * seed for seed in (1.0, 0.5001, 2.0)])
    over = {"strategy": "sgd"}
    rule = Rule(shown=(check(over=over, at_most=1.03),), refuted=(check(over=over, at_least=1.05),))
    assert judge(rule, rows, KEYS).verdict.value == verdict


@pytest.mark.parametrize(
    ("take", "at_most", "value", "holds"),
    [("every", 1.0, 3.0, False), ("any", 1.1, 1.0, True), ("median", 2.1, 2.0, True), ("median", 1.9, 2.0, False)],
)
def test_each_or_one_or_the_middle_configuration_keeps_a_bound(
    take: str, at_most: float, value: float, holds: bool
) -> None:
    rows = table(a=[1.0, 1.0], b=[2.0, 2.0], c=[2.999, 3.001])
    asked = check(rows={}, take=take, at_most=at_most)
    (found,) = judge(Rule((asked,), ()), rows, KEYS).shown
    assert found.value == pytest.approx(value)
    assert found.holds is holds


def test_a_divisor_is_one_row() -> None:
    rows = table(sgd=[2.0], bmuf=[2.0])
    with pytest.raises(UserError, match="0 rows have"):
        measured(rows, KEYS, "dev", {"strategy": "bmuf"}, {"strategy": "bsp"})
    with pytest.raises(UserError, match="2 rows have"):
        measured(rows, KEYS, "dev", {"strategy": "bmuf"}, {"learners": 4})


def test_a_table_says_losses_beside_one_learner_of_the_same_seed() -> None:
    rows = table(sgd=[2.0, 1.0], bmuf=[2.2, 1.1], asgd=[None, None])
    evidence = Evidence("small", "", "", "", "", 0.0, "", "", KEYS, tuple(rows))
    titles, *cells = measured_table(evidence)
    assert [titles[-1], *(row[-1] for row in cells)] == [BESIDE, "", "1.1 (1.1 to 1.1)", "diverged"]
    alone = replace(evidence, rows=tuple(row for row in evidence.rows if row["strategy"] != "sgd"))
    assert BESIDE not in measured_table(alone)[0]


def test_a_rerun_lands_within_the_stated_spread_or_is_told_where_it_does_not() -> None:
    claim = Claim(99, "", None, open="not here", landing=(Landing("dev", 0.03, broken=6.0),))  # type: ignore[arg-type]
    before = table(sgd=[2.0], bmuf=[2.1], asgd=[6.2])
    assert landings(claim, before, table(sgd=[2.05], bmuf=[2.1], asgd=[None]), KEYS) == []
    (told,) = landings(claim, before, table(sgd=[2.0], bmuf=[2.2], asgd=[9.0]), KEYS)
    assert "bmuf" in told
    assert len(landings(claim, before, table(sgd=[2.0], asgd=[2.0]), KEYS)) == 2  # one is missing, one mended


# Running --------------------------------------------------------------------------------------------------------------


def test_a_claim_is_run_and_gone_on_with(tmp_path: Path) -> None:
    """Interrupted after two rows it goes on with the third, and comes to the rows of a run in one go."""
    claim, told = read_claim("small", SMALL), []
    interrupt = Interrupt()

    def say(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            interrupt.asked = True

    halves, whole = ClaimFolders(tmp_path / "halves"), ClaimFolders(tmp_path / "whole")
    assert run_claim(claim, halves, Ways(Silent(), say, interrupt)) is None
    assert len(told) == 2
    evidence = run_claim(claim, halves, Ways(Silent(), told.append, Interrupt()))
    assert len(told) == 8
    assert run_claim(claim, halves, Ways(Silent(), told.append, Interrupt())) == evidence
    (line,) = told[8:]
    assert line.startswith("all 8 rows are there already")
    again = run_claim(claim, whole, Ways(Silent(), lambda _: None, Interrupt()))
    assert evidence is not None
    assert again is not None
    assert evidence.rows == again.rows
    assert evidence.verdict == Verdict.SHOWN.value
    assert read_evidence(tmp_path / "whole" / "small" / "evidence.json") == again
    picture = ElementTree.fromstring(draw(claim, evidence))
    assert [one.text for one in picture.iter(f"{SVG}text") if one.text in ("ssgd", "adpsgd")] == ["ssgd", "adpsgd"]
    assert len([*picture.iter(f"{SVG}path")]) == 4  # a line, and one in the legend, for each


def test_rows_of_another_definition_are_not_mixed_in(tmp_path: Path) -> None:
    Kept(tmp_path / "rows.json", "one").keep({"strategy": "sgd"}, {"dev": 1.0}, wall_clock())
    with pytest.raises(UserError, match="as it was defined before"):
        Kept(tmp_path / "rows.json", "two")


def test_without_its_corpus_a_claim_says_what_it_needs(tmp_path: Path) -> None:
    training = next(claim for claim in load_claims() if "--source" in claim.command)
    with pytest.raises(UserError, match=r"needs the corpus .*--source"):
        run_claim(training, ClaimFolders(tmp_path), Ways(Silent(), lambda _: None, Interrupt()))


# Simulated experiments ------------------------------------------------------------------------------------------------


def test_distances_on_paper() -> None:
    """Four learners on a ring: eigenvalues 1/3, 1/3, -1/3; delay-by-one: 0 three times."""
    assert settled_on_paper(make_strategy("delay-by-one"), 4) == pytest.approx((1.0, (3 / 4) ** 0.5))
    gap, distance = settled_on_paper(make_strategy("dpsgd:ring,order=consensus"), 4) or (0, 0)
    assert gap == pytest.approx(2 / 3)
    assert distance == pytest.approx((3 * (1 / (1 - 1 / 9)) / 4) ** 0.5)
    assert settled_on_paper(make_strategy("adpsgd"), 4) is None


def test_distances_measured_are_those_on_paper() -> None:
    claim = find_claim("spectral-gap")
    assert claim.experiment is not None
    pieces: list[Piece] = [p for p in mixing_pieces(claim.experiment) if p.key["learners"] == 4][:7:3]  # type: ignore[arg-type]
    for piece in pieces:
        row = piece.work(Silent())
        assert row is not None
        assert row["ratio"] == pytest.approx(1, abs=0.1)


# The noise scale ------------------------------------------------------------------------------------------------------


def test_the_noise_scale_of_two_gradients_by_hand() -> None:
    """Their product is the signal, 4 - 1 = 3; of their mean square, 5, the rest is noise: 8 examples times 2 / 3."""
    two = [torch.tensor([2.0, 1.0]), torch.tensor([2.0, -1.0])]
    assert noise_scale(two, 8) == pytest.approx(16 / 3)
    assert noise_scale([two[0], -two[0]], 8) is None
    with pytest.raises(ValueError, match="two gradients"):
        noise_scale(two[:1], 8)


@pytest.mark.parametrize("examples", [4, 64])
def test_the_noise_scale_is_the_same_whatever_minibatches_it_is_taken_of(examples: int) -> None:
    """Of a gradient of square 4 with noise of variance 900 in one example's: 225, within what chance there is."""
    drawn, signal = np.random.default_rng(1), np.full(10_000, 0.02)
    noise = 30 / np.sqrt(10_000 * examples)
    found = noise_scale((torch.tensor(signal + noise * drawn.standard_normal(10_000)) for _ in range(64)), examples)
    assert found == pytest.approx(225, rel=0.1)


def test_what_a_regime_was_measured_of_is_told_from_what_is_said_of_it() -> None:
    claim = next(claim for claim in load_claims() if claim.regime)
    assert claim.regime is not None
    said, other = (replace(claim, regime=replace(claim.regime, **new)) for new in ({"says": "else"}, {"groups": 2}))
    assert said.regime_definition == claim.regime_definition != other.regime_definition
    with pytest.raises(UserError, match="only trainings have a regime"):
        read_claim("small", SMALL + "regime: {overrides: [], tune: []}")
