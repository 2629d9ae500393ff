"""Training of recipes: train; and replay, of a run directory."""

import argparse
import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.parent import leave_signals
from roundelay.loggers import LOGGERS
from roundelay.stopping import status, stopping
from roundelay.terminal import Bar, complain, console

if TYPE_CHECKING:
    from roundelay.runtime.launch.world import HostPlace


AUTO = "auto"
"""Word that stands for the advised strategy."""
OF_RECIPE = ("learners", "runtime", "seed", "on_death", "host_patience", "wire", "fragments")
"""Options of a recipe's section `training` that are also options of the command."""


_TRAIN = """
train: train a network with one of the strategies, or resume a training
recipe | a YAML file, or the name of a packaged recipe
--set KEY=VALUE ++ ->overrides | the same as KEY=VALUE without --set
overrides * | section.key=value, for example schedule.max_epochs=5
--exp <path> ! | the run directory; a run in it is resumed
--strategy NAME[:TOPOLOGY][,KEY=VALUE...] | the data-parallel strategy; `roundelay list strategies` names all; auto: the
    one that `roundelay advise` would take on this host (default: the recipe's)
--learners <count> | @learners
--runtime {procs,sim} | @runtime
--seed <whole> | @seed
--init EXP <path> | start from this model: a run directory, its model.safetensors, or a checkpoint (docs/starting.md)
--resume | go on with the run that is there, also under another strategy; begin none
--begin-anew | where no checkpoint is whole any more: begin again, and keep the old log under another name
--on-death {replace,go-on,shrink,stop} | @on_death
--record | record every event for `roundelay replay`
--logger {loggers} ... | draw curves there too, beside TensorBoard; may be repeated (docs/python.md)
--listen ADDRESS[:PORT] | several hosts: the address where the others reach this host, or relay where they cannot: the
    first host then passes connections on (docs/hosts.md)
--host-patience SECONDS <positive> | @host_patience
--wire CODEC | @wire
--fragments K <count> | @fragments
--keep-copies | several hosts: a host that does not lead keeps a copy of the newest checkpoint in its own --exp, so that
    it can lead when the first is lost
--straggler RANK:3x|RANK:+0.4 <straggler> ... | make a learner so many times slower, or every gradient of it so many
    seconds longer; may be repeated
$ roundelay train demo --exp exp/demo/one
$ roundelay train demo --exp exp/demo/four --strategy adpsgd:random-ring --learners 4
$ roundelay train demo --exp exp/demo/auto --strategy auto --learners 4
$ roundelay train an4 --exp exp/an4/bmuf --strategy bmuf,period=20 --learners 4 schedule.max_epochs=8
"""


def add(command: Command) -> None:
    """Add the command `train` to the command line; options of the recipe have the recipe's own words."""
    from roundelay_speech.recipes.known import explained

    about = {name: explained(name).replace("%", "%%") for name in OF_RECIPE}
    about = {name: f"{text} (default: the recipe's)" for name, text in about.items()}
    add_described(command, _train, _TRAIN, loggers=list(LOGGERS), **about)


def _train(options: argparse.Namespace) -> int:
    """Train on one host or, under torchrun's variables, on one of several."""
    _check(options)  # names a slip before torch is loaded
    from roundelay.runtime.launch.local_rendezvous import LocalLeader, wait_for_leader
    from roundelay.runtime.launch.world import read_place

    place = read_place(options.listen)
    if place is None:
        return _train_here(options, None)
    if place.local_rank:
        leave_signals()  # local rank 0 answers, which may take a round
        return wait_for_leader(place)
    if options.learners not in (None, place.learners):
        raise UserError(f"--learners is {options.learners}, but WORLD_SIZE is {place.learners}: leave --learners out.")
    options.learners = place.learners
    slots, ended = LocalLeader(place), 1
    try:
        ended = _train_here(options, place)
    except UserError:
        ended = 2
        raise
    except SystemExit as end:
        ended = int(end.code or 0)
        raise
    finally:
        slots.release(ended)
    return ended


def _train_here(options: argparse.Namespace, place: "HostPlace | None") -> int:
    from roundelay.job import Interrupt
    from roundelay.run_directory import alone
    from roundelay.runtime.base import LearnerDied
    from roundelay.runtime.hosts.control.agent import serve
    from roundelay.runtime.hosts.control.copies import CopyReceiver
    from roundelay.runtime.hosts.control.succession import LedByAnother
    from roundelay.runtime.hosts.terms import check_may_join
    from roundelay_speech.acoustic import make_job, make_terms, renumbered
    from roundelay_speech.api.training import Beginning, conduct, make_logger
    from roundelay_speech.recipes.recipe import load_recipe

    if options.strategy == AUTO:
        _choose(options, place)
    recipe = load_recipe(options.recipe, _overrides(options))
    job = make_job(recipe, options.exp, place)
    cluster = job.cluster
    if place is not None:
        check_may_join(cluster.strategy, place)
    if place is not None and not place.conducts:
        interrupt, stopped, then = Interrupt(), "", None

        def asked() -> str:  # from the moment on that this host takes part
            interrupt.busy = True
            return interrupt.why

        copies = CopyReceiver(options.exp, console.print) if options.keep_copies else None
        with stopping(interrupt), nullcontext() if copies is None else alone(options.exp):
            try:
                terms = make_terms(recipe, cluster.strategy, options.exp)
                stopped = serve(cluster, place, terms, console.print, asked, copies)
                _end(options)
            except LearnerDied as error:
                raise UserError(f"the learners of this host do not start: {error}") from error
            except LedByAnother as led:
                then = led
        if then is not None:
            options.straggler = renumbered(recipe.training.stragglers, then.former)
            return _without_first(options, then.place)
        return status(interrupt.why or stopped) if interrupt.asked or stopped else 0
    job = replace(job, loggers=tuple(map(make_logger, options.logger)))
    results, why = conduct(
        job, options.exp, Beginning(options.resume, options.begin_anew), Bar(), partial(_end, options)
    )
    if results is None:
        complain(f"interrupted; everything so far is in {options.exp}. The same command goes on from there.")
        return status(why)
    objective = recipe.training.objective
    for split, loss in results.frame_cross_entropy.items():
        console.print(
            f"{split} {objective.measured} {loss:.4f}, {objective.right} {100 * results.frame_accuracy[split]:.2f} %"
        )
    console.print(
        f"{results.frames_seen:,} {objective.examples} in {results.wall_seconds:.0f} s, "
        f"staleness mean {results.staleness['mean']:.1f} largest {results.staleness['largest']:.0f}; "
        f"stopped because {results.stopped}"
    )
    return 0


def _end(options: argparse.Namespace) -> None:
    """Ignore signals from now on, after a run is over: a process with torch takes a second or more to end, in which a
    signal would change its exit status."""
    if options.alone:
        leave_signals()


def _without_first(options: argparse.Namespace, place: "HostPlace") -> int:
    """Go on with a run after its first host has ended: this host gets another place, perhaps the first."""
    where = f"this host leads at {place.address}:{place.port}" if place.conducts else f"{place.address} leads"
    console.print(f"the first host is lost: {where}, from the last checkpoint in {options.exp}")
    options.learners, options.resume = place.learners, place.conducts
    return _train_here(options, place)


def _choose(options: argparse.Namespace, place: "HostPlace | None") -> None:
    """Replace `auto` by a strategy, and print which and why."""
    from roundelay_speech.advice import chosen_strategy, refuse_several_hosts

    if place is not None and not place.alone:
        refuse_several_hosts()
    options.strategy, why = chosen_strategy(options.recipe, _overrides(options), options.exp)
    console.print(f"strategy {options.strategy}: {why}")


def _check(options: argparse.Namespace) -> None:
    """Check recipe and overrides for mistakes.

    Raises:
        UserError: as `check_recipe`; says so where several values were meant to be trained.
    """
    from roundelay.core.strategy_text import split_outside_brackets
    from roundelay_speech.recipes.known import check_recipe

    try:
        check_recipe(options.recipe, _overrides(options))
    except UserError as error:
        for text in options.overrides:
            key, _, values = text.partition("=")
            if len(split_outside_brackets(values)) > 1 and key.partition(".")[0] in str(error):
                raise UserError(
                    f"{error} `train` trains one value; `roundelay compare {options.recipe} --strategies NAME {text}` "
                    "trains each of them."
                ) from error
        raise


def _overrides(options: argparse.Namespace) -> list[str]:
    given = list(options.overrides)
    for flag in ("strategy", *OF_RECIPE):
        value = getattr(options, flag)
        if value is not None and (flag, value) != ("strategy", AUTO):
            given.append(f"training.{flag}={value}")
    if options.init is not None:
        given.append(f"init.model={json.dumps(str(options.init))}")
    if options.record:
        given.append("training.record=true")
    if options.straggler:
        given.append(f"training.stragglers=[{', '.join(repr(text) for text in options.straggler)}]")
    return given


def replay_run(exp: Path) -> int:
    """Repeat the run in that directory, for `roundelay replay`; return its exit status."""
    from roundelay.runtime.hosts.exchange.repeated import RepeatedExchanges
    from roundelay.runtime.launch.world import HostPlace
    from roundelay.runtime.replay.whole import replay
    from roundelay.runtime.trace import recorded_hosts
    from roundelay_speech.acoustic import TRACE, make_job
    from roundelay_speech.prepared import load_corpus
    from roundelay_speech.recipes.recipe import kept_recipe
    from roundelay_speech.trained import MODEL, load_model

    recipe = kept_recipe(exp)
    if (exp / MODEL).is_file():
        load_model(exp).check(load_corpus(recipe.corpus), exp)
    trace, learners = exp / TRACE, recipe.training.learners
    hosts = recorded_hosts(trace)
    place = HostPlace(tuple(hosts[0]), learners) if hosts else None
    found = replay(trace, make_job(recipe, exp, place).cluster, Bar(), partial(RepeatedExchanges, trace, learners))
    done = f"{found.minibatches:,} minibatches, {found.events:,} events in {found.commands} stretches"
    if found.difference:
        console.print(f"{exp}: differs after {done}.\nThe first difference: {found.difference}")
        return 1
    console.print(f"{exp}: {done}, repeated to the same weights, bit for bit.")
    return 0
