"""Loggers: receivers of a run's records while they are written (docs/python.md)."""

from collections.abc import Callable

from roundelay.core.plugins import WithPlugins
from roundelay.loggers.base import Logger
from roundelay.loggers.mlflow import MlflowLogger
from roundelay.loggers.wandb import WandbLogger

LOGGERS: WithPlugins[Callable[[], Logger]] = WithPlugins("loggers", {"mlflow": MlflowLogger, "wandb": WandbLogger})
"""Functions that make a logger, by name; other packages add theirs by entry points of the group `roundelay.loggers`."""
