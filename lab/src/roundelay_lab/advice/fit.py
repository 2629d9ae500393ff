"""Fits the model of learning.py on committed runs: `python -m roundelay_lab.advice.fit` writes fitted.json, with every
configuration's residual."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

import roundelay
from roundelay.advice.learning import COLUMNS, EfficiencyFit, Trained, columns
from roundelay.advice.machines import bytes_per_second
from roundelay.advice.throughput import Candidate, StepWork, never_talking, speed
from roundelay.core.configure import build, read_yaml
from roundelay.core.files import json_line, read_json, write_text
from roundelay.runtime.sim.cluster import Compute, Handicap, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.strategies import make_strategy

FITTED_DIGITS = 5


@final
@dataclass(frozen=True)
class Configuration:
    """A configuration of the fit: runs of one strategy that differ in their seed alone.

    source  file or page of the figures
    loss    mean over seeds of log(held-out loss / that of one learner)
    """

    source: str
    strategy: str
    trained: Trained
    loss: float


@final
@dataclass(frozen=True)
class Residual:
    """A configuration compared with the fit, in log(loss / loss of one learner).

    left_out  prediction of the fit to all others
    terms     terms of the prediction, by column
    """

    source: str
    strategy: str
    learners: int
    measured: float
    fitted: float
    left_out: float
    terms: Mapping[str, float]


def configurations() -> list[Configuration]:
    """Return all configurations of the fit."""
    known = runs()
    found = [one for claim, task in known["evidence"].items() for one in _evidence(claim, task, known["left_out"])]
    found += [*_tables(known["an4"]), *_on_two_hosts(known["two_hosts"])]
    unique = {(one.strategy, one.trained): one for one in reversed(found)}
    return [*unique.values()][::-1]


def _on_two_hosts(known: Mapping[str, Any]) -> Iterator[Configuration]:
    """Yield configurations of trainings on two hosts, by loss over that of `ssgd`, which computes as one learner."""
    rounds = known["frames"] * known["epochs"] / known["minibatch"]
    for row in known["rows"]:
        link = VirtualLinks(between=VirtualLink(LATENCY, bytes_per_second(row["rate"])))
        cluster = VirtualCluster(nodes=(Node(count=2),), compute=Compute(seconds=known["seconds"]), links=link)
        candidate = Candidate(row["strategy"], "fp32", row["fragments"])  # all rows travelled so then
        steps = speed(candidate, cluster, StepWork(known["parameters"], known["minibatch"] // 2)).steps_an_exchange
        trained = Trained(2, rounds, known["momentum"], steps_an_exchange=steps)
        place = f"docs/log.md, two hosts, {row['rate']}, {row['fragments']} fragments"
        yield Configuration(place, row["strategy"], trained, log(row["loss"] / known["one_learner"]))


def runs() -> dict[str, Any]:
    """Return the content of runs.yaml."""
    return read_yaml(Path(__file__).with_name("runs.yaml"))


def _evidence(claim: str, task: Mapping[str, Any], left_out: Sequence[Mapping[str, Any]]) -> Iterator[Configuration]:
    content = read_json(Path(__file__).parents[1] / "claims" / "evidence" / f"{claim}.json")
    alike = ["seed", *(key for key in ("minibatch_per_learner", "learning_rate") if key in content["keys"])]
    rows = [row for row in content["rows"] if row["dev"] is not None]
    alone = {tuple(row[key] for key in alike): row["dev"] for row in rows if row["strategy"] == "sgd"}
    ratios = defaultdict(list)
    for row in rows:
        if row["strategy"] == "sgd" or any(one["claim"] == claim and _fits(row, one) for one in left_out):
            continue
        period = f",period={row['period']}" if row.get("period") else ""
        each = row.get("minibatch_per_learner") or task.get("minibatch_per_learner")
        rounds = task["frames"] * task["epochs"] / (row["learners"] * each if each else task["minibatch"])
        trained = Trained(row["learners"], rounds, 0.0, row["learners"] if each else 1)
        ratios[row["strategy"] + period, trained].append(log(row["dev"] / alone[tuple(row[key] for key in alike)]))
    for (strategy, trained), found in ratios.items():
        yield Configuration(f"claims/evidence/{claim}.json", strategy, trained, float(np.mean(found)))


def _fits(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(row.get(key) == value for key, value in wanted.items() if key not in ("claim", "why"))


def _tables(an4: Mapping[str, Any]) -> Iterator[Configuration]:
    trained = Trained(an4["learners"], an4["frames"] * an4["epochs"] / an4["minibatch"], an4["momentum"])
    for table in an4["tables"]:
        alone = table["one_learner"]
        for strategy, losses in table["rows"].items():
            found = [log(loss / one) for loss, one in zip(losses, alone, strict=True)]
            yield Configuration("docs/an4.md", strategy, trained, float(np.mean(found)))


def fit_all() -> tuple[EfficiencyFit, list[Residual]]:
    """Fit all configurations; return the fit and the residual of each."""
    used = configurations()
    terms = [columns(make_strategy(one.strategy), one.trained) for one in used]
    x = np.array([[found[name] for name in COLUMNS] for found in terms])
    y = np.array([one.loss for one in used])
    solved = _least_squares(x, y)
    others = np.array([x[k] @ _least_squares(np.delete(x, k, 0), np.delete(y, k)) for k in range(len(y))])
    places = np.array([one.source.partition(",")[0] for one in used])
    apart = [x[places == place] @ _least_squares(x[places != place], y[places != place]) for place in set(places)]
    missed = np.concatenate([found - y[places == place] for place, found in zip(set(places), apart, strict=True)])
    exponent, error = exponent_of(runs()["lengths"])
    fit = EfficiencyFit(
        coefficients=_rounded(dict(zip(COLUMNS, solved, strict=True))),
        exponent=round(exponent, FITTED_DIGITS),
        exponent_error=round(error, FITTED_DIGITS),
        without=_size(y),
        leave_one_out=_size(others - y),
        leave_source_out=_size(missed),
        largest=_rounded({name: max(found[name] for found in terms) for name in COLUMNS}),
        strategies=tuple(sorted({make_strategy(one.strategy).name for one in used} | {"sgd"})),
        throughput_error=round(throughput_error(predicted(load_measured())), FITTED_DIGITS),
    )
    rows = [
        Residual(
            source=one.source,
            strategy=one.strategy,
            learners=one.trained.learners,
            measured=_digits(loss),
            fitted=_digits(here),
            left_out=_digits(out),
            terms=_rounded(found),
        )
        for one, found, loss, here, out in zip(used, terms, y, x @ solved, others, strict=True)
    ]
    return fit, rows


def _least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0])


def _size(values: NDArray[np.float64]) -> float:
    return _digits(np.sqrt(np.mean(values**2)))


def exponent_of(lengths: Mapping[str, Any]) -> tuple[float, float]:
    """Return the exponent of the loss over examples, -d log(loss) / d log(examples), and its standard error over pairs
    of neighbouring lengths of training."""
    found = []
    for epochs_of in lengths["losses"].values():
        for seed in epochs_of:
            points = sorted(seed.items())
            found += [log(loss / later) / log(more / epochs) for (epochs, loss), (more, later) in pairwise(points)]
    return float(np.mean(found)), float(np.std(found, ddof=1))


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: _digits(value) for name, value in values.items()}


def _digits(value: float) -> float:
    return round(float(value), FITTED_DIGITS)


def write(path: Path) -> None:
    """Fit all configurations, and write the fit to the file `path`."""
    fit, rows = fit_all()
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in asdict(fit).items()]
    body = ",\n".join(f"  {json_line(asdict(row))}" for row in rows)
    write_text(path, "{\n" + ",\n".join([*lines, f' "rows": [\n{body}\n ]']) + "\n}\n")


LATENCY = 1e-4
"""Latency in seconds that is assumed of a link: it hardly matters for models."""


@final
@dataclass(frozen=True)
class MeasuredRow:
    """A measured line: a mode over links of a rate, and its throughput over that of learners that never talk."""

    rate: str
    mode: str
    ratio: float


@final
@dataclass(frozen=True)
class MeasuredTable:
    """The measured rows of one setting (measured.yaml explains the keys).

    slow   how many times as long the last learner takes as the others
    share  of busy cores that exchanges were allowed (`exchange_share`); None: the default
    """

    source: str
    seconds: float
    parameters: float
    rows: tuple[MeasuredRow, ...]
    learners: int = 1
    cores: float | None = None
    slow: float = 1.0
    share: float | None = None

    def cluster(self, rate: str) -> VirtualCluster:
        """Return the table's two hosts as a virtual cluster, with links of this rate."""
        last = 2 * self.learners - 1
        return VirtualCluster(
            name=f"two hosts, {rate}",
            nodes=(Node(self.learners, count=2, cores=self.cores),),
            compute=Compute(seconds=self.seconds),
            links=VirtualLinks(between=VirtualLink(LATENCY, bytes_per_second(rate))),
            stragglers=(Handicap(last, self.slow),) if self.slow > 1 else (),
        )


@final
@dataclass(frozen=True)
class ThroughputCompared:
    """A measured row and the prediction for it."""

    source: str
    row: MeasuredRow
    ratio: float


def candidate_of(mode: str) -> Candidate:
    """Return the strategy and the run's options that a `mode` of measured.yaml names."""
    name, *options = mode.split("+")
    given = dict(option.split("=") for option in options)
    return Candidate(name, given.get("wire", "fp32"), int(given.get("fragments", 1)))


def load_measured() -> list[MeasuredTable]:
    """Return all tables of measured throughput."""
    return [build(MeasuredTable, one) for one in read_measured()["throughput"]]


def read_measured() -> dict[str, Any]:
    """Return what measured.yaml, which explains its keys, says."""
    return read_yaml(Path(__file__).with_name("measured.yaml"))


def predicted(tables: Iterable[MeasuredTable]) -> list[ThroughputCompared]:
    """Return every row with the throughput that the simulator predicts, over that of learners that never talk."""
    found = []
    for table in tables:
        for row in table.rows:
            cluster, work = table.cluster(row.rate), StepWork(table.parameters)
            fast = speed(candidate_of(row.mode), cluster, work, table.share)
            ratio = fast.examples_per_second / never_talking(cluster, work)
            found.append(ThroughputCompared(table.source, row, ratio))
    return found


def throughput_error(rows: Sequence[ThroughputCompared]) -> float:
    """Return the root mean square of log(predicted / measured throughput)."""
    return sqrt(sum(log(one.ratio / one.row.ratio) ** 2 for one in rows) / len(rows))


if __name__ == "__main__":
    write(Path(roundelay.__file__).parent / "advice" / "fitted.json")
