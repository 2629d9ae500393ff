"""Parameters and curves for MLflow, offline or to a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from roundelay.core.extras import load
from roundelay.core.files import parse_json, write_json
from roundelay.core.records import Finished, Record
from roundelay.loggers.base import LoggedRun, Logger, Scalars, flat

RUN_FILE = "mlflow.json"
"""File in a run's directory with the id of its run in MLflow, so that a resumed run goes on there."""
PARAMETER_LENGTH, PARAMETERS_AT_ONCE = 500, 100
"""Limits of MLflow: characters of a parameter, and parameters a call."""


@final
class MlflowLogger(Logger):
    """A logger for MLflow, with one run there for each run directory.

    Args:
        experiment: name of the experiment in MLflow.
        uri: address of the server, or of a folder or database; None: as MLflow is set up (MLFLOW_TRACKING_URI).
    """

    def __init__(self, experiment: str = "roundelay", uri: str | None = None) -> None:
        self._mlflow = load("mlflow", "mlflow", "MlflowLogger")
        self._experiment, self._client = experiment, self._mlflow.MlflowClient(uri)
        self._run, self._scalars = "", Scalars()

    def begin(self, run: LoggedRun) -> None:
        self._scalars = Scalars(run.frames or 0)
        known = _kept(run.exp) if run.frames is not None else None
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(number, run_name=run.exp.resolve().name).info.run_id
        write_json(run.exp / RUN_FILE, {"run": self._run})
        self._parameters(flat(run.recipe))

    def log(self, record: Record) -> None:
        frames, numbers = self._scalars.of(record)
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=frames)
        if isinstance(record, Finished):
            self._client.set_terminated(self._run)

    def close(self) -> None:
        """End the run in MLflow, unless it has not finished and may be resumed."""

    def _parameters(self, options: Mapping[str, Any]) -> None:
        parameter = self._mlflow.entities.Param
        whole = [parameter(key, str(value)[:PARAMETER_LENGTH]) for key, value in options.items()]
        for first in range(0, len(whole), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=whole[first : first + PARAMETERS_AT_ONCE])


def _kept(exp: Path) -> str | None:
    try:
        return str(parse_json((exp / RUN_FILE).read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
