"""A training loop as users of Hugging Face's `transformers` write it: a model that returns its loss, two parameter
groups, a schedule with warm-up, gradient accumulation, clipping, autocast. Lines for Roundelay are marked with `# <-`.

    roundelay launch -n 2 examples/hf_style.py --strategy bmuf

With `transformers` installed the model is a small BERT; else a stand-in with the same face. The task: of two words,
which occurs more often in the sentence?
"""

import argparse
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import roundelay  # <-

WORDS, LENGTH = 24, 12


class Sentences(Dataset[dict[str, Tensor]]):
    """Sentences of word numbers, and 1 where word 3 occurs more often than word 4."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(2, WORDS, (count, LENGTH), generator=generator)
        swap = torch.rand(count, LENGTH, generator=generator) < 0.5
        self.words[swap] = torch.randint(3, 5, (int(swap.sum()),), generator=generator)
        self.labels = ((self.words == 3).sum(1) > (self.words == 4).sum(1)).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self.words[index]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": self.labels[index]}


class StandIn(nn.Module):
    """A stand-in with the interface of a sequence classifier of `transformers`."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(WORDS, 32)
        self.LayerNorm = nn.LayerNorm(32)
        self.classifier = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> SimpleNamespace:
        mask = attention_mask[..., None]
        mean = (self.embeddings(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.classifier(self.LayerNorm(mean))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def make_model() -> Any:
    if find_spec("transformers") is None:
        return StandIn()
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """No weight decay for biases and layer norms."""
    named = list(model.named_parameters())
    bare = [p for name, p in named if "bias" in name or "LayerNorm" in name]
    rest = [p for name, p in named if "bias" not in name and "LayerNorm" not in name]
    return [{"params": rest, "weight_decay": weight_decay}, {"params": bare, "weight_decay": 0.0}]


def with_warmup(optimizer: torch.optim.Optimizer, warmup: int, total: int) -> LambdaLR:
    """Up in a straight line, and down to 0, as `get_linear_schedule_with_warmup`."""

    def factor(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))

    return LambdaLR(optimizer, factor)


@torch.no_grad()
def evaluate(model: nn.Module, data: DataLoader[Mapping[str, Tensor]]) -> float:
    """Mean loss."""
    model.eval()
    losses = [float(model(**batch).loss) for batch in data]
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="bmuf")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()

    train, test = Sentences(options.examples, seed=1), DataLoader(Sentences(500, seed=2), batch_size=250)
    torch.manual_seed(0)  # else every learner takes rank 0's weights, and says so
    model = make_model()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-2)
    session = roundelay.attach(model, optimizer, options.strategy)  # <-
    batches = DataLoader(train, batch_sampler=session.sampler(train, batch_size=16))  # <-
    every = options.gradient_accumulation_steps
    steps = options.epochs * len(batches) // every
    scheduler = with_warmup(optimizer, warmup=steps // 10, total=steps)

    with session:
        for epoch in range(options.epochs):
            model.train()
            for number, batch in enumerate(batches, 1):
                with torch.autocast("cpu", torch.bfloat16) if options.bf16 else nullcontext():
                    loss = model(**batch).loss / every
                loss.backward()
                if number % every == 0:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()  # the session's, from attach to close
                    scheduler.step()
                    optimizer.zero_grad()
            with session.consensus():  # <-
                loss_there = evaluate(model, test)
            print(f"learner {session.rank} epoch {epoch} loss {loss_there:.4f}", flush=True)


if __name__ == "__main__":
    main()
