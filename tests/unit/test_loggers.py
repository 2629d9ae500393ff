"""Loggers: who is told of records, what is drawn of them, and points of curves inside an epoch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from roundelay.core.epochs import EpochPlan
from roundelay.core.progress import Silent
from roundelay.core.records import CurvePoint, Decoded, Record, Results, read_events, to_line
from roundelay.job import Interrupt
from roundelay.journal import CurvePoints
from roundelay.learner.quadratic import Quadratic
from roundelay.loggers.base import FunctionLogger, LoggedRun, Logger, Scalars
from roundelay.loggers.tensorboard import TensorBoard, draw_word_errors
from roundelay.runtime.base import Glance, SegmentPlan
from roundelay.runtime.learner_state import MEASURED
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.training import train
from support.clusters import MINIBATCH
from support.runs import comparable, job
from support.until import until

TASK = Quadratic(examples=8 * MINIBATCH)
POINT = CurvePoint(wall_s=3.0, epoch=1, frames=640, learning_rate=0.1, loss=2.5, frames_per_second=10.0, staleness=0.5)


def run_told(exp: Path, *loggers: Logger) -> Results | None:
    return train(replace(job("adpsgd", TASK), loggers=loggers), exp, Silent(), Interrupt())


def test_a_run_without_tensorboard_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundelay.loggers.tensorboard.has", lambda extra: False)
    told: list[str] = []
    logger = TensorBoard(told.append)
    logger.begin(LoggedRun(tmp_path, {}, 0))
    logger.log(POINT)
    logger.close()
    decoded = Decoded(wall_s=1.0, split="dev", wer=5.0, errors={}, acoustic_scale=0.1, real_time_factor=0.1)
    draw_word_errors(LoggedRun(tmp_path, {}, 0), decoded)
    assert [*tmp_path.iterdir()] == []
    assert told == ["no curves for TensorBoard, which is not installed: pip install 'roundelay[tensorboard]'"]


class Failing(Logger):
    def __init__(self) -> None:
        self.told = 0

    def begin(self, run: LoggedRun) -> None:
        """Well so far."""

    def log(self, record: Record) -> None:
        self.told += 1
        raise ConnectionError("nobody answers")

    def close(self) -> None:
        raise AssertionError("it is told no more")


def test_a_function_is_told_of_every_record_in_order(tmp_path: Path) -> None:
    told: list[Record] = []
    run_told(tmp_path / "exp", FunctionLogger(told.append))
    assert [to_line(one) for one in told] == [to_line(one) for one in read_events(tmp_path / "exp" / "events.jsonl")]


def test_a_function_may_stop_a_run_which_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    def enough(record: Record) -> bool:
        return getattr(record, "epoch", 0) == 1

    assert run_told(tmp_path / "stopped", FunctionLogger(enough)) is None
    gone_on, whole = run_told(tmp_path / "stopped"), run_told(tmp_path / "whole")
    assert gone_on is not None
    assert comparable(gone_on) == comparable(whole)


def test_an_error_of_a_function_ends_the_run_and_one_of_a_logger_does_not(tmp_path: Path) -> None:
    def wrong(record: Record) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_told(tmp_path / "one", FunctionLogger(wrong))
    failing = Failing()
    assert run_told(tmp_path / "two", failing) is not None
    assert failing.told == 1


def curves(exp: Path) -> dict[str, list[tuple[int, float]]]:
    # Files of one second are read in the order of the process's count of them, as text: 10 comes before 9.
    found = EventAccumulator(str(exp / "tensorboard"), purge_orphaned_data=False).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_draws_what_the_records_say_and_the_word_error_rate(tmp_path: Path) -> None:
    results = run_told(tmp_path)
    assert results is not None
    record = Decoded(wall_s=1.0, split="test", wer=12.5, errors={"ref": 8}, acoustic_scale=0.1, real_time_factor=0.01)
    draw_word_errors(LoggedRun(tmp_path, {}, results.frames_seen), record)
    wanted: dict[str, list[tuple[int, Any]]] = {}
    scalars = Scalars()
    for one in [*read_events(tmp_path / "events.jsonl"), record]:
        frames, numbers = scalars.of(one)
        for name, value in numbers.items():
            wanted.setdefault(name, []).append((frames, pytest.approx(value)))
    found = curves(tmp_path)
    assert found == wanted
    assert {"train/cross_entropy", "train/staleness", "dev/cross_entropy", "test/wer"} <= set(found)


# Points inside an epoch -----------------------------------------------------------------------------------------------


def looks(period: int, *glances: Glance) -> list[CurvePoint]:
    said: list[CurvePoint] = []
    segment = SegmentPlan(EpochPlan(2, 10_000, 100, 4, 0), 0.1)
    points = CurvePoints(segment, period, 5000, said.append, lambda: {"wall_s": 1.0, "virtual_s": None})
    for glance in glances:
        points.look(glance)
    return said


def test_points_are_differences_between_looks_and_add_up_to_the_whole() -> None:
    glances = [
        Glance(frames, loss, stale, 4, steps=frames // 25, gradient_norm_sum=norm, gradient_norms=frames // 500)
        for frames, loss, stale, norm in [(100, 5.0, 0.0, 0.0), (1000, 4.0, 1.0, 6.0), (3000, 2.0, 1.5, 20.0)]
    ]
    one, two = looks(10, *glances)
    assert (one.frames, two.frames, one.epoch) == (6000, 8000, 2)
    assert (one.loss, two.loss) == pytest.approx((4.0, 1.0))
    assert (one.staleness, two.staleness) == pytest.approx((1.0, 1.75))
    assert (one.gradient_norm, two.gradient_norm) == pytest.approx((3.0, 3.5))
    assert one.learning_rate == 0.1
    assert (1000 * one.loss + 2000 * two.loss) / 3000 == pytest.approx(glances[-1].loss)


def test_without_a_period_there_are_no_points() -> None:
    assert looks(0, Glance(1000, 1.0, 0.0, 4, steps=40)) == []


def test_seconds_of_a_point_are_virtual_where_the_clock_is() -> None:
    glances = [Glance(n, 1.0, 0.0, 4, 50.0 + seconds, steps=n) for n, seconds in [(1, 0.0), (101, 5.0), (301, 7.0)]]
    one, two = looks(50, *glances)
    assert (one.frames_per_second, two.frames_per_second) == pytest.approx((101 / 5, 100))
    assert (one.virtual_s, two.virtual_s) == (5.0, 7.0)


def test_norms_are_those_of_one_gradient_in_so_many(one_thread: None) -> None:
    made = job("sgd", Quadratic(examples=(2 * MEASURED + 5) * MINIBATCH))
    plan = EpochPlan(0, made.cluster.task.build().examples, MINIBATCH, 1, made.cluster.seed)
    with SimRuntime(made.cluster) as runtime:
        counts = runtime.segment(SegmentPlan(plan, learning_rate=0.0)).counts
    learner = made.cluster.task.build()
    out, norms = torch.zeros(learner.parameters), []
    for number in (0, MEASURED, 2 * MEASURED):
        learner.gradient(learner.initial(), plan.piece(number), plan, out)
        norms.append(float(torch.linalg.vector_norm(out)))
    assert counts.gradient_norms.tolist() == [3]
    assert counts.gradient_norm.tolist() == pytest.approx([sum(norms)])


# Loggers of other programs --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # other people's
def test_mlflow_is_told_of_options_and_curves_and_a_resumed_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # of whoever has no database
    mlflow = pytest.importorskip("mlflow", reason="MLflow is an extra: pip install 'roundelay[mlflow]'")
    from roundelay.loggers.mlflow import MlflowLogger  # noqa: PLC0415

    logger = MlflowLogger("trial", uri=(tmp_path / "mlruns").as_uri())
    exp = tmp_path / "exp"
    stop: Callable[[Record], object] = lambda record: getattr(record, "epoch", 0) == 1  # noqa: E731
    assert run_told(exp, logger, FunctionLogger(stop)) is None
    assert run_told(exp, logger) is not None
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.learners"] == "3"
    drawn = client.get_metric_history(run.info.run_id, "dev/cross_entropy")
    tensorboard = curves(exp)["dev/cross_entropy"]
    assert [one.step for one in drawn] == [frames for frames, _ in tensorboard]
    assert [one.value for one in drawn] == pytest.approx([value for _, value in tensorboard])


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_a_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is an extra: pip install 'roundelay[wandb]'")
    from roundelay.loggers.wandb import WandbLogger  # noqa: PLC0415

    assert run_told(tmp_path / "exp", WandbLogger()) is not None
    (kept,) = (tmp_path / "exp" / "wandb").glob("offline-run-*/run-*.wandb")
    until(lambda: b"dev/cross_entropy" in kept.read_bytes())  # a process of its own writes it
