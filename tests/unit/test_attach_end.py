"""The end of a session: nothing of the arena is left, and SIGTERM ends the loop after a step."""

import gc
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import roundelay
from roundelay.core.errors import UserError
from support.small_loop import backward, batches, network, network_by_sgd


def arenas() -> int:
    """Mappings and descriptors of arenas in this process."""
    here = Path("/proc/self")
    links = [os.readlink(link) for link in (here / "fd").iterdir() if link.is_symlink()]
    return (here / "maps").read_text().count("roundelay-arena") + sum("roundelay-arena" in link for link in links)


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd", "bmuf", "asgd", "hadpsgd"])
def test_nothing_of_the_arena_outlives_a_session(strategy: str) -> None:
    """At once, not when the garbage is collected: descriptors and memory stay flat over many sessions."""
    gc.collect()
    gc.disable()
    try:
        before, descriptors, kept = arenas(), len(os.listdir("/proc/self/fd")), []
        for number in range(5):
            model = network()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            session = roundelay.attach(model, optimizer, strategy)
            sampler = session.sampler(16, 4)
            for x, y in batches(3):
                backward(model, x, y)
                optimizer.step()
            with session.consensus():
                model(x)
            assert arenas() > before
            session.close() if number % 2 else session.abandon()
            kept.append((session, sampler, model, optimizer))
            assert arenas() == before
        assert len(os.listdir("/proc/self/fd")) == descriptors
    finally:
        gc.enable()


# SIGTERM --------------------------------------------------------------------------------------------------------------


def test_sigterm_ends_the_loop_at_the_end_of_a_step() -> None:
    model, optimizer = network_by_sgd()
    done = []
    with pytest.raises(SystemExit) as ended, roundelay.attach(model, optimizer) as session:  # noqa: PT012
        for number, (x, y) in enumerate(batches()):
            backward(model, x, y)
            if number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("goes on")
            optimizer.step()
            done.append("stepped")
    assert ended.value.code == 128 + signal.SIGTERM
    assert done == ["stepped", "stepped", "goes on"]
    assert session.steps == 3
    assert not session.open
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_loop_that_looks_ends_by_itself() -> None:
    model, optimizer = network_by_sgd()
    with roundelay.attach(model, optimizer) as session:
        for number, (x, y) in enumerate(batches()):
            if session.stopping:
                break
            backward(model, x, y)
            optimizer.step()
            if number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
    assert session.steps == 3
    with roundelay.attach(model, optimizer) as again:
        assert not again.stopping


def test_a_handler_of_the_user_s_own_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with roundelay.attach(model := network(), torch.optim.SGD(model.parameters(), lr=0.1)) as session:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not session.stopping
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_forked_child_is_ended_by_it() -> None:
    model = network()
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        if not (child := os.fork()):
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_a_forked_child_holds_no_lock_of_its_learner() -> None:
    """It may outlive a learner that is killed, by seconds or for good: the death of that is seen at once."""

    def locks() -> int:
        found = 0
        for place in os.listdir("/proc/self/fdinfo"):
            with suppress(FileNotFoundError):  # the one that lists them
                found += "lock:" in Path("/proc/self/fdinfo", place).read_text()
        return found

    model = network()
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        assert locks()
        if not (child := os.fork()):
            os._exit(locks())
        _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.parametrize("what", ["step", "forward and step", "begin", "meet", "close"])
def test_a_forked_child_that_trains_is_told_so_and_changes_nothing(
    what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that only evaluates may, also where gradients are recorded."""

    def trained(fork: bool) -> list[list[float]]:
        model, optimizer = network_by_sgd()
        with roundelay.attach(model, optimizer, "adpsgd") as session:
            for number, (x, y) in enumerate(batches(6)):
                backward(model, x, y)
                if fork and number == 2 and not (child := os.fork()):
                    said = "nothing"
                    torch.set_num_threads(1)  # torch's own threads do not come along, and it would wait for them
                    try:
                        if what == "forward and step":
                            optimizer.zero_grad()
                            backward(model, x, y)
                        match what:
                            case "begin":
                                session.begin_step()
                            case "meet":
                                session.meet()
                            case "close":
                                session.close()
                            case _:
                                optimizer.step()
                    except UserError as error:
                        said = str(error)
                    finally:
                        os.write(1, f"child: {said}\n".encode())
                        os._exit(0)
                if fork and number == 2:
                    os.waitpid(child, 0)
                optimizer.step()
            assert session.steps == 6
        return [p.tolist() for p in model.parameters()]

    assert trained(fork=True) == trained(fork=False)
    assert "was forked from the learner and is none" in capfd.readouterr().out
