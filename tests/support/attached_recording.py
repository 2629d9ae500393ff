"""Run as several learners by tests/laws/test_attach_replay.py: sessions that are recorded, and repeated.

What the test changes between the two is in the environment: who is slow, and what goes wrong.
"""

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import roundelay
from roundelay.attached import Session
from roundelay.runtime.rows import Deferred
from support.launched import report
from support.until import until

EXAMPLES, MINIBATCH, EPOCHS, OWN = 96, 4, 2, 32
MANY = 8
"""Steps of the others in the first of learner 1, where that is slow."""
WAIT_FOR_NOBODY = ("adpsgd", "async-diloco")
SESSIONS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("adpsgd", "sampler", {}),
    ("adpsgd", "share", {"rate": "as-is", "topology": "fixed-ring"}),
    ("async-diloco", "sampler", {"period": 3}),
    ("bmuf", "sampler", {"period": 2, "quorum": 2, "grace": 0.0}),
    ("diloco", "sampler", {"period": 3}),
    ("hadpsgd", "share", {"node_size": 2}),
    ("ssgd", "sampler", {}),
)
ON_HOSTS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("ssgd", "sampler", {}),
    ("ssgd", "share", {"codec": "int8"}),
    ("dpsgd", "sampler", {}),
    ("diloco", "sampler", {"period": 3}),
    ("adpsgd", "own", {}),
    ("adpsgd", "share", {"rate": "as-is", "topology": "fixed-ring", "hosts": {"wire": "int8", "fragments": 2}}),
    ("divshare", "sampler", {"fragments": 3}),
    ("hadpsgd", "share", {"node_size": 2}),
    ("asgd", "sampler", {"period": 2}),
    ("easgd", "own", {"period": 2}),
    ("async-diloco", "share", {"period": 3}),
)
"""Sessions on several hosts."""
SLOW, BUSY = "TEST_SLOW", "TEST_BUSY"
"""Variables: a learner is slow, it `waits` or `sleeps`; one that finds others' rows locked in two of three steps."""
CORRUPT, OTHER_RATE, KILLED = "TEST_CORRUPT", "TEST_OTHER_RATE", "TEST_KILLED"
"""Variables: a learner and its step, whose gradient has another bit; whose learning rate is another; that is killed."""


def at(variable: str, rank: int, step: int) -> bool:
    """Does it happen now?"""
    return os.environ.get(variable) == f"{rank}:{step}"


class Loop:
    """Somebody's loop."""

    def __init__(self, strategy: str, options: dict[str, object], record: str, **more: object) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(EXAMPLES, 6), torch.randint(3, (EXAMPLES,))
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        given = {"patience": 60.0, "record": record, **options, **more}
        self.session: Session = roundelay.attach(self.model, self.optimizer, strategy, **given)  # type: ignore[arg-type]
        self.steps, self.drawn = 0, list[list[int]]()

    def batches(self, kind: str) -> Callable[[], Iterator[list[int]]]:
        """Indices of each minibatch, as the sessions of each kind share them out; each learner its `own`."""
        if kind == "own":
            return lambda: iter([list(range(n, n + MINIBATCH)) for n in range(0, OWN, MINIBATCH)])
        if kind == "share":
            shared = self.session.share([list(range(n, n + MINIBATCH)) for n in range(0, EXAMPLES, MINIBATCH)])
            return lambda: iter(shared)
        sampler = self.session.sampler(EXAMPLES, MINIBATCH)
        return lambda: iter(sampler)

    def step(self, batch: list[int]) -> None:
        rank = self.session.rank
        self.steps += 1
        if at(KILLED, rank, self.steps):
            os._exit(9)
        self.drawn.append(batch)
        self.optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(self.model(self.x[batch]), self.y[batch]))
        if at(CORRUPT, rank, self.steps):
            flip(next(self.model.parameters()).grad)
        self.optimizer.param_groups[0]["lr"] = 0.02 if at(OTHER_RATE, rank, self.steps) else 0.01
        self.optimizer.step()
        self.be_slow()

    def be_slow(self) -> None:
        """Learner 1 waits for steps of the others; or learner 0 takes its time."""
        how, session = os.environ.get(SLOW), self.session
        if how == "waits" and session.rank == 1 and self.steps == 1 and session.strategy.name in WAIT_FOR_NOBODY:
            until(lambda: sum(session.summary()["steps"]) - self.steps >= MANY)
        if how == "sleeps" and session.rank == 0:
            time.sleep(2e-3)

    def tell(self, law: str) -> None:
        """Report what has come of it, in a meeting."""
        state = self.session.state_dict()
        names = ("row", *state["memory"])
        vectors = {name: digest(state["row"] if name == "row" else state["memory"][name]) for name in names}
        report(law=law, rank=self.session.rank, vectors=vectors, drawn=self.drawn, steps=self.session.steps)


def find_rows_locked() -> None:
    """A deferred exchange is done in every third step only, as where somebody else has the row: one is left over when a
    segment ends."""
    take, steps = Deferred.take, itertools.count(1)
    Deferred.take = lambda self, mine: take(self, mine) if next(steps) % 3 == 0 else None  # type: ignore[method-assign]


def flip(gradient: Tensor | None) -> None:
    """Change the lowest bit of one element."""
    assert gradient is not None
    gradient.view(torch.int32).view(-1)[7] ^= 1


def digest(vector: Tensor) -> str:
    return hashlib.blake2b(vector.numpy().tobytes(), digest_size=8).hexdigest()


def train(strategy: str, kind: str, options: dict[str, object], record: str) -> None:
    """One session."""
    loop = Loop(strategy, options, record)
    batches = loop.batches(kind)
    with loop.session as session:
        for _ in range(EPOCHS):
            for batch in batches():
                loop.step(batch)
            with session.consensus():
                pass
        loop.tell(f"{strategy} {kind}")


def several(record: str) -> None:
    for strategy, kind, options in SESSIONS:
        train(strategy, kind, options, record)


def on_hosts(record: str, strategy: str = "") -> None:
    """Sessions of which each host has a record of its own."""
    host = roundelay.rank() - roundelay.local_rank()
    for name, kind, options in ON_HOSTS:
        if strategy in ("", name):
            train(name, kind, options, f"{record}/of-{host}")


def one(record: str, strategy: str) -> None:
    train(strategy, "sampler", {}, record)


def saving(record: str, saves: str) -> None:
    """An epoch, from the newest save on, and a save."""
    loop = Loop("adpsgd", {}, record, resume=saves)
    sampler = loop.session.sampler(EXAMPLES, MINIBATCH)
    with loop.session as session:
        for batch in sampler:
            loop.step(batch)
        loop.tell(f"saved in {session.save(saves).name}")


if __name__ == "__main__":
    if os.environ.get(BUSY) == str(roundelay.rank()):
        find_rows_locked()
    loops: dict[str, Callable[..., None]] = {"several": several, "one": one, "saving": saving, "on_hosts": on_hosts}
    loops[sys.argv[1]](*sys.argv[2:])
