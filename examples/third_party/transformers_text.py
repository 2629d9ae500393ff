"""A small GPT-2 by transformers' Trainer on letters of a text: its data, one learner, and the losses of models kept.

    python transformers_text.py prepare --source TEXT --data DIR
    python transformers_text.py learn --data DIR --way alone --rank 0 --notes DIR [--seconds 60]
    python transformers_text.py judge --data DIR --notes DIR

TEXT is any text, of a few million letters (.gz or not). Needed are transformers and accelerate. Trainer is as it is:
`ddp` is its own, by the variables that torchrun sets, and Roundelay's ways add `RoundelayCallback`. Nothing is
evaluated, logged or saved, which takes time from some ways and not from others; a callback looks at the clock, and
sleeps in the slow learner. to_loss.py runs all ways.
"""

import argparse
import gzip
import os
from pathlib import Path
from typing import Any

import looks
import numpy as np
import torch
from torch.utils.data import Dataset

PIECE = 128
"""Letters of an example."""
HELD_OUT = 256
"""Examples that are judged: the last ones of the text."""


class Pieces(Dataset[dict[str, torch.Tensor]]):
    """Pieces of the text, as numbers of letters."""

    def __init__(self, data: Path, part: str) -> None:
        letters = np.fromfile(data / "letters", np.uint8)
        pieces = torch.from_numpy(letters[: len(letters) // PIECE * PIECE].reshape(-1, PIECE))
        self._pieces = pieces[:-HELD_OUT] if part == "train" else pieces[-HELD_OUT:]

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self._pieces[index].long()
        return {"input_ids": piece, "labels": piece}


def prepare(options: argparse.Namespace, _: list[str]) -> None:
    """Write the letters of the text; the rare ones are one."""
    opened = gzip.open if options.source.suffix == ".gz" else open
    with opened(options.source, "rb") as text:
        found = np.frombuffer(text.read(), np.uint8)
    number, counts = np.zeros(256, np.uint8), np.bincount(found, minlength=256)
    common = np.argsort(-counts, kind="stable")[:63]
    number[common] = np.arange(1, 64)
    options.data.mkdir(parents=True, exist_ok=True)
    number[found].tofile(options.data / "letters")


def model(words: list[str]) -> torch.nn.Module:
    """Return a small model from its configuration, with random weights; `words` are its sizes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    sizes = parser.parse_args(words)
    torch.manual_seed(0)
    shape = {"n_layer": sizes.layers, "n_embd": sizes.width, "n_head": 4, "n_positions": PIECE, "vocab_size": 64}
    config = GPT2Config(**shape, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    made: torch.nn.Module = GPT2LMHeadModel(config)
    return made


def learn(options: argparse.Namespace, words: list[str]) -> None:
    """One learner, until it is killed."""
    if options.way == "ddp":  # as torchrun does
        os.environ |= {"RANK": str(options.rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    from transformers import Trainer, TrainerCallback, TrainingArguments

    watch = looks.watch(options)
    watch.model = model(words)

    class Looks(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            watch.step()

    callbacks: list[TrainerCallback] = [Looks()]
    if options.way not in ("alone", "ddp"):
        from roundelay.integrations.transformers import RoundelayCallback

        strategy, _, rate = options.way.partition("+rate=")
        callbacks.append(RoundelayCallback(strategy, rate=rate or "auto"))
    given = TrainingArguments(
        str(options.notes / "exp"),
        num_train_epochs=100,
        per_device_train_batch_size=8,
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        use_cpu=True,
        ddp_backend="gloo" if options.way == "ddp" else None,
        dataloader_pin_memory=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(watch.model, given, train_dataset=Pieces(options.data, "train"), callbacks=callbacks).train()


def judge(options: argparse.Namespace, words: list[str]) -> None:
    """Print the curve: nats a letter of the held-out pieces."""
    judged, pieces = model(words).eval(), Pieces(options.data, "held out")
    batches = [torch.stack([pieces[first + one]["input_ids"] for one in range(64)]) for first in range(0, HELD_OUT, 64)]

    @torch.no_grad()
    def loss() -> float:
        return float(np.mean([judged(input_ids=batch, labels=batch).loss.item() for batch in batches]))

    looks.print_curve(options.notes, judged, loss)


if __name__ == "__main__":
    looks.main(__doc__, prepare, learn, judge)
