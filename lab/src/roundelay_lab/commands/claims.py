"""Claims of papers about these strategies: claims."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.stopping import status, stopping
from roundelay.terminal import Bar, complain, console, print_table

if TYPE_CHECKING:
    from roundelay_lab.claims.claim import Claim
    from roundelay_lab.claims.evidence import Evidence

_CLAIMS = """
claims: list claims of papers, with verdicts; run one again; write their page
what {list,run,regime,write} ? =list | list all, run some again, measure minibatches beside the noise of
    gradients, or write the page
name * | with run and regime: names or numbers of claims
--out DIR <path> | the folder for runs and prepared corpora (default: exp/claims); with write: the folder of the page
    (default: docs)
--source DIR <path> | the folder with the corpus's recordings
--lexicon FILE <path> | a pronunciation dictionary in CMU format
--first-seed N <whole> | with run: as many other seeds, counted from N; their table is held to the evidence that comes
    with the package
--evidence DIR <path> | also write DIR/NAME.json, or of a regime DIR/NAME-regime.json, as they come with the package
$ roundelay claims
$ roundelay claims run stragglers
$ roundelay claims run rings --source corpora/an4
$ roundelay claims run stragglers --first-seed 101 --out exp/others
$ roundelay claims regime large-batch --source corpora/an4
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _claims, _CLAIMS)


def _claims(options: argparse.Namespace) -> int:
    if options.what in ("run", "regime"):
        if not options.name:
            raise UserError(f"claims {options.what} needs the name or number of a claim; `roundelay claims` lists all.")
        return _work(options)
    if options.name:
        raise UserError(f"claims {options.what} takes no names; `roundelay claims run {options.name[0]}` runs one.")
    return _write(options) if options.what == "write" else _list()


def _list() -> int:
    from roundelay.reports.numbers import seconds
    from roundelay_lab.claims.page import settled

    for one in settled():
        claim, evidence = one.claim, one.evidence
        head = f"{claim.number:>2}  {one.judgement.verdict.value:<9} {one.chance:>6}  {claim.name}: {claim.title}"
        console.print(head)
        console.print(f"{'':22}{one.short}")
        took = f"  ({seconds(evidence.seconds)} on {evidence.machine})" if evidence else ""
        if claim.experiment is not None:
            console.print(f"{'':22}{claim.command}{took}")
    return 0


def _write(options: argparse.Namespace) -> int:
    from roundelay_lab.claims.page import write_page

    for path in write_page(options.out or Path("docs")):
        console.print(f"written: {path}")
    return 0


def _work(options: argparse.Namespace) -> int:
    """Run claims, or measure their regimes, one after the other."""
    from roundelay_lab.claims.claim import find_claim

    claims = [find_claim(name) for name in options.name]
    from roundelay.job import Interrupt
    from roundelay_lab.claims.evidence import write_evidence
    from roundelay_lab.claims.page import measured_table
    from roundelay_lab.claims.running import run_claim, run_regime
    from roundelay_lab.claims.speech import ClaimFolders, Ways

    folders = ClaimFolders(options.out or Path("exp/claims"), options.source, options.lexicon)
    interrupt, far, regime = Interrupt(), 0, options.what == "regime"
    ways = Ways(Bar(quiet=True), console.print, interrupt)
    with stopping(interrupt):
        for claim in claims:
            seeded = claim if regime or options.first_seed is None else claim.with_seeds(options.first_seed)
            evidence = (run_regime if regime else run_claim)(seeded, folders, ways)
            if evidence is None:
                complain(f"interrupted; everything so far is in {folders.out}. The same command goes on from there.")
                return status(interrupt.why)
            if options.evidence is not None:
                write_evidence(evidence, options.evidence / f"{claim.name}{'-regime' * regime}.json")
            if regime:
                titles, *rows = measured_table(evidence)
                print_table(titles, [tuple(row) for row in rows], left=0)
            else:
                far += _judge(claim, evidence)
    return 1 if far else 0


def _judge(claim: "Claim", evidence: "Evidence") -> int:
    """Print the verdict by this evidence; return the number of configurations that are far from ours."""
    from roundelay_lab.claims.evidence import landed
    from roundelay_lab.claims.page import Settled, shown
    from roundelay_lab.claims.rule import judge

    assert claim.rule is not None
    judgement = judge(claim.rule, evidence.rows, evidence.keys)
    words = {True: "holds", False: "fails", None: "undecided"}
    rows = [
        (one.check.says, what, shown(one.value), shown(one.edge), words[one.holds])
        for what, checks in (
            ("shown if", judgement.shown),
            ("refuted if", judgement.refuted),
            ("open if", judgement.open),
        )
        for one in checks
    ]
    print_table(["check", "", "mean", "end of the interval", ""], rows, left=2)
    settled = Settled(claim, evidence, judgement)
    console.print(f"{claim.name}: {judgement.verdict.value}. {settled.sure}")
    apart = landed(claim, list(evidence.rows))
    if apart is not None:
        told, where = "\n  ".join(apart) or "all configurations", "outside" if apart else "within"
        console.print(f"{where} the stated spread of the evidence that comes with the package: {told}")
    return len(apart or ())
