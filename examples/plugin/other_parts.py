"""A part of each other kind that a package may bring, as short as it goes. `pyproject.toml` names them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from roundelay.commands.base import Command
from roundelay.core.bounds import Whole
from roundelay.core.codec import Cast
from roundelay.core.records import Record
from roundelay.learner.objectives.base import Classification, Evidence, Inputs
from roundelay.loggers.base import LoggedRun, Logger
from roundelay_speech.corpus.readers.fsdd import FSDD
from roundelay_speech.models.frontend import Columns, Frontend, FrontendConfig
from roundelay_speech.models.network import FrameNetwork, NetworkConfig
from roundelay_speech.prepared import load_corpus


@dataclass(frozen=True)
class Truncated(Cast):
    """The upper half of every float32, cut off."""

    name: ClassVar[str] = "truncated"
    error: ClassVar[float] = 2.0**-7
    form: ClassVar[torch.dtype] = torch.int16

    def encode(self, x: Tensor, coded: Tensor) -> None:
        coded.copy_(x.view(torch.int32) >> 16)

    def decode(self, coded: Tensor, x: Tensor) -> None:
        x.view(torch.int32).copy_(coded.int() << 16)


@dataclass(frozen=True)
class LinearConfig(NetworkConfig):
    """One layer over a window of frames."""

    name: Literal["linear"] = field(default="linear", kw_only=True)
    context: Whole = 5
    """Frames on each side that the network sees."""

    def network(self, features: Columns, states: int) -> "Linear":
        return Linear(self, features, states)


class Linear(FrameNetwork):
    """Scores (B, S) of windows of features."""

    output_layer = "output"

    def __init__(self, config: LinearConfig, features: Columns, states: int) -> None:
        super().__init__()
        self.frontend = Frontend(FrontendConfig(context=config.context), features)
        self.output = nn.Linear(self.frontend.width, states)
        self.reset()

    def forward(self, windows: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        scores: Tensor = self.output(self.frontend(windows, mean, std))
        return scores


@dataclass(frozen=True)
class Brier(Classification):
    """The squared distance of probabilities from the target (Brier 1950); evaluation reports cross-entropy."""

    name: Literal["brier"] = field(default="brier", kw_only=True)

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        """Return the mean of sum_c (p_c - [c = target])^2 over scores (B, C), classes (B,) int64."""
        log_p = nn.functional.log_softmax(module(*inputs).float(), 1)
        p, plain = log_p.exp(), nn.functional.nll_loss(log_p, targets)
        right = p.gather(1, targets[:, None]).squeeze(1)
        return (p.square().sum(1) - 2 * right + 1).mean(), Evidence(plain.detach(), log_p.detach())


class Kinds(Logger):
    """Kinds of records, a line each, in EXP/kinds.txt."""

    def begin(self, run: LoggedRun) -> None:
        self.file = run.exp / "kinds.txt"

    def log(self, record: Record) -> None:
        with self.file.open("a") as file:
            file.write(f"{type(record).__name__}\n")

    def close(self) -> None:
        """Do nothing: the file is closed after every line."""


DIGITS = replace(FSDD, name="digits", about="The Free Spoken Digit Dataset under another name.")


def transcripts(source: Path, out: Path) -> str:
    """Words of a corpus, a file a split."""
    corpus = load_corpus(source)
    out.mkdir(parents=True, exist_ok=True)
    for split in corpus.splits:
        (out / f"{split}.txt").write_text("\n".join([*corpus.transcripts(split), ""]))
    return f"words of {', '.join(corpus.splits)} -> {out}"


def add(command: Command) -> None:
    """Add the command `greet`."""
    sub = command("greet", lambda options: print("good day,", options.whom), "say a greeting", ("roundelay greet you",))
    sub.add_argument("whom", help="the one who is greeted")
