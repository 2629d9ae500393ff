"""Scaling on several hosts: the same command on each, of which the first leads.

Trainings of as many learners as all hosts have are on all of them, those of fewer on the first host alone. Hosts may
be virtual ones, processes of this machine that meet at its loopback address.
"""

import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.core.parent import die_with_parent
from roundelay.grids.grid import Cell
from roundelay.grids.trials import Trials
from roundelay.runtime.hosts.control.turns import FirstHost, NextTraining
from roundelay.runtime.launch.world import OURS, SECRET, HostPlace, read_place

HOSTS_FILE = "hosts.json"
"""File in the folder of all runs that says how many learners each host has."""
FOLLOWERS_END_SECONDS = 30.0
"""Seconds that other virtual hosts may go on after the first has ended."""


def read_hosts(hosts: int | None) -> HostPlace | None:
    """Return this host's place among several hosts, from the environment; None: there is one host.

    Args:
        hosts: the number of hosts asked for; None: not given.

    Raises:
        UserError: the environment has another number of hosts, or lacks what scaling needs.
    """
    place = read_place()
    if place is None or place.alone:
        return None
    if place.hosted:
        raise UserError(
            "scaling on several hosts is not for torchrun, whose store has the port at which they meet: start it as "
            "examples/launch/by_hand.sh does."
        )
    if place.local_rank or place.begin:
        raise UserError("scaling on several hosts is one process on each, with LOCAL_RANK=0 and all its learners.")
    if hosts is not None and hosts != place.learners / len(place.ranks):
        raise UserError(
            f"--hosts is {hosts}, and the environment says {place.learners} learners, {len(place.ranks)} of them on "
            "this host: leave --hosts out, or unset WORLD_SIZE for hosts that are played by this machine."
        )
    return place


def check_learners(learners: Sequence[int], place: HostPlace) -> None:
    """Raise a UserError unless each number of learners is that of all hosts together or fits on the first."""
    here = len(place.ranks)
    wrong = [str(number) for number in learners if number > here and number != place.learners]
    if wrong:
        raise UserError(
            f"--learners {','.join(wrong)}: on these hosts give {place.learners}, which is all of them, or at most "
            f"{here}, which are on the first alone."
        )


def check_folder(folder: Path, place: HostPlace | None) -> None:
    """Check that the folder of all runs was begun on as many hosts; single trainings do not record that.

    Raises:
        UserError: it was begun on other hosts, or on one.
    """
    path, here = folder / HOSTS_FILE, [] if place is None else [place.learners, len(place.ranks)]
    there = read_json(path) if path.exists() else [] if folder.is_dir() and any(folder.iterdir()) else here
    if there != here:
        said = [f"{sizes[0]} learners, {sizes[1]} a host" if sizes else "one host" for sizes in (there, here)]
        raise UserError(f"{folder}: has trainings on {said[0]}, and this is {said[1]}. Give another --exp.")
    if here and not path.exists():
        write_json(path, here)


def digest_of(source: str, given: Sequence[str], wanted: Mapping[str, Any]) -> str:
    """Return a digest of a command, by which hosts check that all were given the same."""
    path = Path(source)
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else source
    return hashlib.sha256(json.dumps([content, list(given), wanted], default=str).encode()).hexdigest()


def cell_of(trials: Trials, turn: NextTraining) -> Cell:
    """Return the cell of the training that the first host names in `turn`.

    Raises:
        UserError: this host has no training of that name.
    """
    for tuning in trials.tunings((turn.rate, 2 * turn.rate)):  # one alone would be no choice
        for cell in tuning.trials:
            if cell.configuration.stem == turn.name:
                return trials.cell(cell.configuration, turn.seed)
    raise UserError(f"the first host trains {turn.name}, which is nothing that this host was asked for.")


@contextmanager
def led(trials: Trials, place: HostPlace | None, about: str) -> Iterator[Trials]:
    """Provide `trials` led by this host: those of all learners run on all hosts, of which this is the first.

    Args:
        place: this host's place; None: there are no others, and `trials` are provided as they are.
        about: digest of the command.
    """
    check_folder(trials.folder, place)
    if place is None:
        yield trials
        return
    hosts = f"{trials.about}; {place.learners} learners on hosts of {len(place.ranks)}"
    with FirstHost(place, about) as first:
        yield replace(trials, first=first, about=hosts)


@contextmanager
def virtual_hosts(hosts: int, request: Mapping[str, Any]) -> Iterator[None]:
    """Make this process the first of `hosts` hosts with one learner each; the others are processes of this machine,
    which do the work that `request` orders (`following.py`)."""
    meets = {"WORLD_SIZE": hosts, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    meets["MASTER_PORT"] = _two_free_ports()
    variables = {OURS + name: str(value) for name, value in meets.items()} | {SECRET: secrets.token_hex(16)}
    before, parent = dict(os.environ), os.getpid()
    command, others = [sys.executable, "-m", "roundelay.grids.following"], list[subprocess.Popen[bytes]]()
    try:
        for rank in range(1, hosts):
            process = subprocess.Popen(
                command,
                env={**before, **variables, OURS + "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the first host, which tells the others
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 it calls the kernel, and nothing else
            )
            others.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as given:
                given.write(json.dumps(request).encode())
        os.environ.update({**variables, OURS + "RANK": "0"})
        yield
    finally:
        for name in {*variables, OURS + "RANK"}:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
        for process in others:
            try:
                process.wait(FOLLOWERS_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _two_free_ports() -> int:
    """Return a free port of the loopback address whose next port is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
