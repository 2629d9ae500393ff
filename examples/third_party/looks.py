"""Parts that scripts for to_loss.py share: the command line, models that learners write down, and their curve."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch


class Watch:
    """Called in every step, between the backward pass and the update: sleeps, and writes the model down at its moments.

    Args:
        seconds: until the last of `looks` equally distant looks, from the first step on.
        slower: by this factor, by a sleep after the processor's work since the last call.
    """

    def __init__(self, notes: Path, rank: int, seconds: float, looks: int, slower: float) -> None:
        self.notes, self.rank, self.slower = notes, rank, slower
        self.moments = [seconds * (look + 1) / looks for look in range(looks)]
        self.model: torch.nn.Module | None = None
        self.steps, self.began, self.look, self.busy = 0, 0.0, 0, time.thread_time()

    def step(self) -> None:
        """One step of the learner."""
        assert self.model is not None
        if self.slower > 1 and self.steps:
            time.sleep((self.slower - 1) * (time.thread_time() - self.busy))
        now = time.monotonic()
        self.began = self.began or now
        self.steps += 1
        while self.look < len(self.moments) and now - self.began >= self.moments[self.look]:
            place = self.notes / f"weights-{self.rank}-{self.look}"
            weights = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()
            weights.numpy().astype(np.float32).tofile(place)
            fact = {"at": now, "began": self.began, "steps": self.steps, "busy": time.process_time()}
            place.with_suffix(".json.part").write_text(json.dumps(fact))
            place.with_suffix(".json.part").rename(place.with_suffix(".json"))
            self.look += 1
        self.busy = time.thread_time()


def print_curve(notes: Path, model: torch.nn.Module, held_out_loss: Callable[[], float]) -> None:
    """Print the curve of a run: the held-out loss of the mean of the learners' models, at each look."""
    ranks = sorted({int(path.stem.split("-")[1]) for path in notes.glob("weights-*.json")})
    looks = sorted({int(path.stem.split("-")[2]) for path in notes.glob("weights-*.json")})
    curve = []
    for look in looks:
        places = [notes / f"weights-{rank}-{look}" for rank in ranks]
        if not all(place.with_suffix(".json").exists() for place in places):
            continue
        facts = [json.loads(place.with_suffix(".json").read_text()) for place in places]
        mean = np.mean([np.fromfile(place, np.float32) for place in places], axis=0)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(mean), model.parameters())
        seconds = max(fact["at"] for fact in facts) - min(fact["began"] for fact in facts)
        curve.append({"seconds": seconds, "loss": held_out_loss(), "steps": [fact["steps"] for fact in facts]})
    print(json.dumps({"parameters": sum(one.numel() for one in model.parameters()), "curve": curve}))


Act = Callable[[argparse.Namespace, list[str]], None]


def main(description: str | None, prepare: Act, learn: Act, judge: Act) -> None:
    """Do what the command line says; words that are not known here go to the toolkit."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    acts = {"prepare": prepare, "learn": learn, "judge": judge}
    parser.add_argument("act", choices=acts)
    for place in ("--source", "--data", "--clone", "--notes"):
        parser.add_argument(place, type=lambda text: Path(text).resolve())
    parser.add_argument("--way", default="alone", help="alone, ddp, or a strategy")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--looks", type=int, default=12)
    parser.add_argument("--slower", type=float, default=1.0, help="factor of the learner of rank 1")
    options, words = parser.parse_known_args()
    torch.set_num_threads(1)
    acts[options.act](options, words)


def watch(options: argparse.Namespace) -> Watch:
    """Return the watch of the learner that the options are of."""
    slower = options.slower if options.rank else 1.0
    return Watch(options.notes, options.rank, options.seconds, options.looks, slower)
