"""Links that say something now and then: one thread for all of them, and one for each that is being attended to."""

import threading
import tracemalloc
from contextlib import ExitStack
from functools import partial

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.elastic import Pull
from roundelay.core.effects import Begin, Exchange, Wait
from roundelay.runtime.hosts.exchange.links import LinkWatch, Workers
from roundelay.runtime.hosts.transport.wire import Link, LinkError, LinkTimeout
from support.links import pair
from support.two_hosts import ask, hosts
from support.until import meanwhile, until

LINKS = 12


def test_a_server_has_no_thread_for_a_learner_elsewhere_that_says_nothing() -> None:
    with hosts([1] + [0] * LINKS, "easgd") as (askers, asked):
        before = threading.active_count()
        for worker in askers.workers.values():
            assert ask(worker, Exchange(1 + LINKS, Pull(0.3))) is not None
            assert ask(worker, Exchange(0, pair_average_)) is not None
        assert len(asked.server._sessions) == 2 * LINKS
        until(lambda: len(asked.server.watch.workers) <= 3)  # for an exchange under way, and a word that it is settled
        until(lambda: threading.active_count() - before < LINKS)


def test_as_many_threads_as_messages_are_attended_to_and_all_are_heard() -> None:
    """A row is locked, for which half of the learners ask; the others are attended to meanwhile."""
    with hosts([1] + [0] * LINKS, "easgd") as (askers, asked):
        asked.rows[0].lock.acquire()
        waiting, others = [*askers.workers.values()][::2], [*askers.workers.values()][1::2]
        begun = [ask(worker, Begin(Exchange(0, pair_average_))) for worker in waiting]
        until(lambda: len(asked.server._sessions) == len(waiting))
        for worker in others:
            assert ask(worker, Exchange(1 + LINKS, Pull(0.3))) is not None
        asked.rows[0].lock.release()
        for worker, handle in zip(waiting, begun, strict=True):
            assert ask(worker, Wait(handle)) is not None


def test_every_message_is_heard_once_and_in_its_order_and_the_end_of_a_link_too() -> None:
    heard: dict[Link, list[int]] = {}
    over = threading.Semaphore(0)

    def turn(link: Link) -> bool:
        try:
            heard[link].append(int(link.receive(0.0).header["n"]))
        except LinkTimeout:
            return True
        except LinkError:
            over.release()
            return False
        return True

    watch = LinkWatch("a test")
    with ExitStack() as stack:
        ends = [stack.enter_context(pair()) for _ in range(3)]
        for near, far, _ in ends:
            heard[far] = []
            near.send("word", {"n": 0})  # before it is watched
            watch.add(far, partial(turn, far))
        for number in range(1, 50):
            for near, _, _ in ends:
                near.send("word", {"n": number})
        for near, _, _ in ends:
            near.close()
        for _ in ends:
            assert over.acquire(timeout=60)
        watch.close()
        assert all(link.closed for link in heard)
    assert list(heard.values()) == [[*range(50)]] * 3


def test_a_link_keeps_no_room_for_what_it_has_carried() -> None:
    """A host has two links to every learner elsewhere, most of which are silent."""
    payload, room, grown = bytes(1_000_000), bytearray(1_000_000), list[int]()
    with ExitStack() as stack:
        ends = [stack.enter_context(pair()) for _ in range(4)]
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for near, far, _ in ends:
            with meanwhile(partial(near.send, "word", {}, [payload])):
                far.receive(60, room)
            far.send("word", {}, [payload[:300_000]])
            near.receive(60, room)
            grown.append(tracemalloc.get_traced_memory()[0])
    assert grown[-1] - grown[0] < 50_000


def test_a_closed_link_is_not_watched_and_its_number_may_be_anothers() -> None:
    watch = LinkWatch("a test")
    with pair() as (near, far, _):
        far.close()
        watch.add(far, lambda: False)
        near.close()
    watch.close()


def test_work_is_never_behind_work_that_waits_and_idle_threads_end() -> None:
    workers, gate, done = Workers("a test", idle=0.01), threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        gate.wait(60)
        done.release()

    for _ in range(5):
        workers.do(wait)
    workers.do(done.release)
    assert done.acquire(timeout=60)
    assert len(workers) >= 5
    gate.set()
    until(lambda: len(workers) == 0)
    workers.do(done.release)
    workers.close()
    assert sum(done.acquire(blocking=False) for _ in range(9)) == 6
