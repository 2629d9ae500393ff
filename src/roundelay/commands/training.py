"""Training: train, replay, launch."""

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.terminal import Bar, complain, console

if TYPE_CHECKING:
    from roundelay.runtime.procs.world import Place


def add(command: Command) -> None:
    """Their options."""
    _add_train(command("train", _train, "train a network with one of the strategies, or resume a training"))
    sub = command("replay", _replay, "repeat a recorded training in one process, event by event, bit for bit")
    sub.add_argument("exp", type=Path, help="the run directory of a `train --record`")
    sub = command("launch", _launch, "start a script as several learners on this host, for roundelay.attach")
    sub.add_argument("-n", "--learners", type=int, required=True, help="how many")
    sub.add_argument("command", nargs=argparse.REMAINDER, help="a Python script, or any command, and its arguments")


def _train(options: argparse.Namespace) -> int:
    """On one host, or, under torchrun's variables, on one of several."""
    from roundelay.runtime.procs.slots import Slots, lend
    from roundelay.runtime.procs.world import read_place

    place = read_place(options.listen)
    if place is None:
        return _train_here(options, None)
    if place.local_rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # local rank 0 answers it, which may take a round
        return lend(place)
    if options.learners not in (None, place.learners):
        raise UserError(f"--learners is {options.learners}, but WORLD_SIZE is {place.learners}: leave --learners out.")
    options.learners = place.learners
    slots, status = Slots(place), 1
    try:
        status = _train_here(options, place)
    except UserError:
        status = 2
        raise
    finally:
        slots.release(status)
    return status


def _train_here(options: argparse.Namespace, place: "Place | None") -> int:
    from roundelay.acoustic import make_job, make_terms
    from roundelay.recipes.recipe import load_recipe
    from roundelay.runtime.hosts.serving import serve
    from roundelay.training import Interrupt, train

    recipe = load_recipe(options.recipe, _overrides(options))
    job = make_job(recipe, options.exp, place)
    cluster = job.cluster
    if place is not None and not place.conducts:
        interrupt = Interrupt()
        with ctrl_c(interrupt):
            terms = make_terms(recipe, cluster.strategy)
            serve(cluster, place, terms, lambda text: console.print(text, markup=False), lambda: interrupt.asked)
        return 0
    console.print(
        f"{cluster.strategy.label}, {cluster.learners} learner{'s' * (cluster.learners > 1)} on {job.runtime_name}, "
        f"{job.minibatch} frames a round ({job.minibatch // cluster.learners} a learner), seed {cluster.seed} "
        f"-> {options.exp}",
        markup=False,
    )
    interrupt = Interrupt()
    with ctrl_c(interrupt):
        results = train(job, options.exp, Bar(), interrupt, resume_only=options.resume)
    if results is None:
        complain(f"interrupted; everything so far is in {options.exp}. The same command goes on from there.")
        return 130
    for split, loss in results.frame_cross_entropy.items():
        console.print(
            f"{split} frame cross-entropy {loss:.4f}, accuracy {100 * results.frame_accuracy[split]:.2f} %",
            markup=False,
        )
    console.print(
        f"{results.frames_seen:,} frames in {results.wall_seconds:.0f} s, "
        f"staleness mean {results.staleness['mean']:.1f} largest {results.staleness['largest']:.0f}; "
        f"stopped because {results.stopped}",
        markup=False,
    )
    return 0


def _overrides(options: argparse.Namespace) -> list[str]:
    given = list(options.overrides)
    for flag in ("strategy", "learners", "runtime", "seed", "on_death", "host_patience", "wire", "fragments"):
        value = getattr(options, flag)
        if value is not None:
            given.append(f"training.{flag}={value}")
    if options.record:
        given.append("training.record=true")
    if options.straggler:
        given.append(f"training.stragglers=[{', '.join(repr(text) for text in options.straggler)}]")
    return given


@contextmanager
def ctrl_c(interrupt: "object") -> Iterator[None]:
    """The first Ctrl-C asks the run to stop at the next round, with a checkpoint; the second stops it at once."""

    def ask(_: int, __: FrameType | None) -> None:
        if interrupt.asked:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        interrupt.asked = True  # type: ignore[attr-defined]
        complain("stopping at the next round; Ctrl-C again to stop at once.")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _replay(options: argparse.Namespace) -> int:
    from roundelay.acoustic import MODEL, TRACE, load_model, make_job
    from roundelay.recipes.kept import kept_recipe
    from roundelay.runtime.replay import replay
    from roundelay.speech.corpus.prepared import load_corpus

    recipe = kept_recipe(options.exp)
    if (options.exp / MODEL).is_file():
        load_model(options.exp).check(load_corpus(recipe.corpus), options.exp)
    found = replay(options.exp / TRACE, make_job(recipe).cluster, Bar())
    done = f"{found.minibatches:,} minibatches, {found.events:,} events in {found.commands} stretches"
    if found.difference:
        console.print(f"{options.exp}: differs after {done}.\nThe first difference: {found.difference}", markup=False)
        return 1
    console.print(f"{options.exp}: {done}, repeated to the same weights, bit for bit.", markup=False)
    return 0


def _launch(options: argparse.Namespace) -> int:
    from roundelay.runtime.procs.launch import launch

    return launch(options.learners, options.command, complain)


def _add_train(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("recipe", help="a YAML file, or the name of a packaged recipe")
    sub.add_argument("overrides", nargs="*", help="section.key=value, for example schedule.max_epochs=5")
    sub.add_argument("--exp", type=Path, required=True, help="the run directory; resumes what is in it")
    sub.add_argument("--strategy", help="NAME[:TOPOLOGY][,KEY=VALUE...]; docs/strategies has a page for each")
    sub.add_argument("--learners", type=int, help="how many; a run may be resumed with another number")
    sub.add_argument("--runtime", choices=["procs", "sim"])
    sub.add_argument("--seed", type=int)
    sub.add_argument("--resume", action="store_true", help="only go on with what is there; never begin a run")
    sub.add_argument("--on-death", choices=["replace", "go-on", "shrink", "stop"], help="what a learner's death means")
    sub.add_argument("--record", action="store_true", help="take a trace for `roundelay replay`")
    sub.add_argument("--listen", metavar="ADDRESS[:PORT]", help="of this host, for the others (docs/hosts.md)")
    sub.add_argument(
        "--host-patience", type=float, metavar="S", help="silence after which a host is dead (default: 10)"
    )
    sub.add_argument("--wire", choices=["fp32", "bf16"], help="of rows and gradients between hosts (default: fp32)")
    sub.add_argument("--fragments", type=int, metavar="K", help="an exchange between hosts carries 1/K of the row")
    sub.add_argument("--straggler", action="append", metavar="RANK:3x|RANK:+0.4", help="slow a learner down on purpose")
