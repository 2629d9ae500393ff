"""Seconds to a held-out loss of somebody's training on two hosts, beside its own DDP.

    python SCRIPT prepare --source AN4 --data DIR
    python to_loss.py --script SCRIPT --data DIR --out DIR [--clone CLONE] [--patched CLONE]
                      [--learning-rates 0.03 0.06] [--ways ddp ...] [--rates 1gbit 100mbit] [--slower 1 3]
                      [--seconds 75] [-- THE SCRIPT'S OPTIONS]

SCRIPT is icefall_an4.py, transformers_text.py or one like them, which says what it needs. Hosts are network namespaces,
one core each, joined by a link of the given rate: it needs Linux, iproute2 and `roundelay_lab`. `--patched` is a clone
with the toolkit's patch, `--clone` one without. A cell is one way, link and factor by which the second learner is
slower. First, one learner alone trains at every rate of `--learning-rates`, two of them at a time, one a core; the best
in the end is the rate of all ways, and its loss in the end the one to reach. Models are written down on the way, and
judged when no cell runs: the mean of both learners' models. Cells in `--out` already are not run again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay_lab.namespaces.hosts import Hosts

NOT_FINITE = "Too many grads were not finite"
"""Last words of icefall's optimizer when it gives up."""
START = 120.0
"""Seconds in which learners must have begun, and by which they may be late."""


@dataclass(frozen=True)
class Cell:
    """A way, at a learning rate, over a link, with a second learner so much slower."""

    way: str
    learning_rate: float
    link: str = "1gbit"
    slower: float = 1.0

    def place(self, out: Path) -> Path:
        """Return the folder of its models."""
        return out / f"{self.way}-{self.learning_rate:g}-{self.link}-{self.slower:g}"


def script(options: argparse.Namespace, act: str, clone: Path | None) -> list[str]:
    """Return the words that call the toolkit's script."""
    return [str(options.script), act, "--data", str(options.data), *(["--clone", str(clone)] if clone else [])]


def run(options: argparse.Namespace, cell: Cell, number: int) -> None:
    """Run a cell, unless it is there. Its number makes its port; that of `alone` also its core.

    Raises:
        RuntimeError: a learner ended, or did not come to its last look; with its last words.
    """
    place, way = cell.place(options.out), cell.way
    if (place / f"weights-0-{options.looks - 1}.json").exists():
        return
    began = time.monotonic()
    (place / "exp").mkdir(parents=True, exist_ok=True)
    for stale in place.glob("weights-*"):  # of a run that was cut short
        stale.unlink()
    plain = way in ("alone", "ddp")
    words = [*script(options, "learn", options.clone if plain else options.patched), "--notes", str(place)]
    words += ["--way", way, "--slower", str(cell.slower), "--learning-rate", str(cell.learning_rate)]
    words += ["--seconds", str(options.seconds), "--looks", str(options.looks), *options.others]
    launch = [] if plain else ["-m", "roundelay.cli", "launch", "-n", "1", "--no-prefix"]
    learners = 1 if way == "alone" else 2
    with Hosts(2) as hosts:
        hosts.rate(cell.link)
        processes = []
        for host in range(learners):
            world = {
                "MASTER_ADDR": hosts.address(0),
                "MASTER_PORT": str(29500 + number),
                "OMP_NUM_THREADS": "1",
                "STRATEGY": way,
            }
            world |= {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONWARNINGS": "ignore"}
            if not plain:
                world |= {"RANK": str(host), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
                world |= {"ROUNDELAY_SECRET": "a secret for the benchmark"}
            core = (host + (number if way == "alone" else 0)) % (os.cpu_count() or 1)
            command = ["taskset", "-c", str(core), sys.executable, *launch, *words, "--rank", str(host)]
            with open(place / f"said-{host}", "wb") as said:
                processes.append(hosts.start(host, command, env=world, stdout=said, stderr=said))
        until = time.monotonic() + 2 * START + 1.5 * options.seconds
        last = [place / f"weights-{rank}-{options.looks - 1}.json" for rank in range(learners)]
        while not all(path.exists() for path in last):
            time.sleep(0.25)
            ended = [host for host, process in enumerate(processes) if process.poll() is not None]
            if ended or time.monotonic() > until:
                tail = "\n".join((place / f"said-{host}").read_text()[-2000:] for host in ended or range(learners))
                raise RuntimeError(f"{place.name}: a learner ended, or is late:\n{tail}")
    print(f"{place.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def search(options: argparse.Namespace, cells: list[Cell]) -> list[Cell]:
    """Run one learner alone at every rate, two at a time. Returns the cells that did not diverge."""

    def bears(one: tuple[int, Cell]) -> bool:
        number, cell = one
        given_up = cell.place(options.out) / "diverged"
        try:
            if not given_up.exists():
                run(options, cell, number)
        except RuntimeError as error:
            if NOT_FINITE not in str(error):
                raise
            given_up.touch()
        return not given_up.exists()

    with ThreadPoolExecutor(2) as pool:
        return [cell for cell, fine in zip(cells, pool.map(bears, enumerate(cells)), strict=True) if fine]


def judge(options: argparse.Namespace, places: list[Path]) -> None:
    """Curves of all cells that have none, by two processes."""

    def work(some: list[Path]) -> None:
        for place in some:
            words = [*script(options, "judge", options.clone), "--notes", str(place), *options.others]
            command = [sys.executable, *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{place.name}: {done.stderr[-2000:]}")
            (place / "curve.json").write_text(done.stdout.splitlines()[-1])

    missing = [place for place in places if not (place / "curve.json").exists()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (missing[::2], missing[1::2])))


def reach(curve: list[dict[str, float]], target: float) -> float | None:
    """Return the seconds at which a curve comes to a loss, on a straight line between looks."""
    before = None
    for look in curve:
        if look["loss"] <= target:
            if before is None:
                return look["seconds"]
            share = (before["loss"] - target) / (before["loss"] - look["loss"])
            return before["seconds"] + share * (look["seconds"] - before["seconds"])
        before = look
    return None


def table(options: argparse.Namespace, alone: list[Cell], finite: list[Cell], best: Cell, cells: list[Cell]) -> str:
    """Return the table, in Markdown; `finite` are those alone that did not diverge."""

    def curve(cell: Cell) -> dict[str, Any]:
        return json.loads((cell.place(options.out) / "curve.json").read_text())

    target = curve(best)["curve"][-1]["loss"]
    losses = {cell: f"{curve(cell)['curve'][-1]['loss']:.3f}" for cell in finite}
    ends = ", ".join(f"{cell.learning_rate:g}: {losses.get(cell, 'diverged')}" for cell in alone)
    edge = " (at the edge of the grid)" if best in (alone[0], alone[-1]) else ""
    lines = [
        f"{curve(best)['parameters']} parameters; {' '.join(options.others)}; {options.seconds:g} s a cell",
        f"one learner alone, by rate: {ends}; so {best.learning_rate:g}{edge}, and the loss to reach is {target:.3f}",
        "",
        "| link | second learner | way | seconds to the loss | loss in the end | steps |",
        "|---|---|---|---|---|---|",
    ]
    for cell in [best, *sorted(cells, key=lambda one: (one.slower, one.link))]:
        found = curve(cell)["curve"]
        when, steps = reach(found, target), " and ".join(str(number) for number in found[-1]["steps"])
        seconds = "not reached" if when is None else f"{when:.1f}"
        second = "as fast" if cell.slower == 1 else f"{cell.slower:g} times slower"
        where = "| | none" if cell is best else f"| {cell.link} | {second}"
        lines.append(f"{where} | {cell.way} | {seconds} | {found[-1]['loss']:.3f} | {steps} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for place in ("--script", "--data", "--out", "--clone", "--patched"):
        needed = place not in ("--clone", "--patched")
        parser.add_argument(place, type=lambda text: Path(text).resolve(), required=needed)
    parser.add_argument("--learning-rates", nargs="+", type=float, default=[0.03, 0.06, 0.12, 0.24], help="in order")
    parser.add_argument("--ways", nargs="+", default=["ddp", "adpsgd", "diloco,period=20"])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"], help="of the link, as tc writes them")
    parser.add_argument("--slower", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("others", nargs="*", help="options of the script, after --")
    options = parser.parse_args()
    alone = [Cell("alone", rate) for rate in options.learning_rates]
    finite = search(options, alone)
    judge(options, [cell.place(options.out) for cell in finite])
    best = min(finite, key=lambda cell: last_loss(cell.place(options.out)))
    print(f"learning rate {best.learning_rate:g} is best for one learner alone", file=sys.stderr, flush=True)
    cells = [
        Cell(way, best.learning_rate, link, slower)
        for slower in options.slower
        for link in options.rates
        for way in options.ways
    ]
    for number, cell in enumerate(cells, len(alone)):
        run(options, cell, number)
    judge(options, [cell.place(options.out) for cell in cells])
    (options.out / "table.md").write_text(said := table(options, alone, finite, best, cells) + "\n")
    print(said)


def last_loss(place: Path) -> float:
    """Return the held-out loss at the end of a judged cell."""
    return float(json.loads((place / "curve.json").read_text())["curve"][-1]["loss"])


if __name__ == "__main__":
    main()
