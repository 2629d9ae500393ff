"""One host, one process per learner: the parent starts them, hands out segments, watches, and notices deaths.

Legend: P parameters, L learners.
"""

import json
import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
from torch import Tensor

from roundelay.runtime.base import (
    Cluster,
    ClusterState,
    Glance,
    LearnerDied,
    Lost,
    Outcome,
    Runtime,
    SegmentPlan,
    Watch,
    keep_going,
    wall_clock,
)
from roundelay.runtime.procs import queue
from roundelay.runtime.procs.arena import NONE, Arena, Layout, create_file
from roundelay.runtime.procs.patience import Patience
from roundelay.runtime.procs.threads import wait_politely
from roundelay.runtime.procs.worker import Answer, WorkerSpec, main, rows_torn
from roundelay.runtime.trace import Recorder

PARENT = -1
LOOK_SECONDS = 0.2
"""How often the parent looks at its learners."""


class ProcsRuntime(Runtime):
    """Runs a cluster on real processes of this host.

    Args:
        patience_seconds: how long a learner waits for another before it gives up and says for whom.
        threads: torch threads per learner; None shares the cores out evenly.
        trace: a folder to record what happens in, for a replay.
    """

    def __init__(
        self, cluster: Cluster, patience_seconds: float = 300.0, threads: int | None = None, trace: Path | None = None
    ) -> None:
        cluster.strategy.check(cluster.learners)
        self.cluster = cluster
        learner = cluster.task.build()
        self.parameters, self._patience_seconds = learner.parameters, patience_seconds
        scalars = len(cluster.optimizer.scalars)
        self.layout = Layout(cluster.learners, self.parameters, cluster.memory, cluster.centre, scalars)
        self._descriptor = create_file(self.layout)
        self._arena = Arena(self._descriptor, self.layout, Patience(PARENT, patience_seconds))
        initial = learner.initial()
        for row in self._arena.rows():
            row.copy_(initial)
        self._arena.table("alive")[:] = 1
        threads = threads or max(1, len(os.sched_getaffinity(0)) // cluster.learners)
        self._trace = trace
        self._recorder: Recorder | None = None
        if trace:
            facts = {"learners": cluster.learners, "parameters": self.parameters, "threads": threads}
            self._recorder = Recorder(trace, facts, self.state())
        self._lost: list[Lost] = []
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        self._lifelines: list[Connection] = []
        try:
            self._start(patience_seconds, threads)
        except BaseException:
            self.close()
            raise

    def _start(self, patience_seconds: float, threads: int) -> None:
        wait_politely()
        context = multiprocessing.get_context("forkserver")
        preload = ["roundelay.runtime.procs.worker", *self.cluster.optimizer.imports]
        context.set_forkserver_preload(preload)  # torch is imported once, not L times
        _start_fork_server()
        for rank in range(self.cluster.learners):
            mine, theirs = context.Pipe()
            lifeline, ours = context.Pipe(duplex=False)
            spec = WorkerSpec(
                rank, self.cluster, self.layout, f"/proc/{os.getpid()}/fd/{self._descriptor}", patience_seconds,
                threads, self._trace,
            )  # fmt: skip
            process = context.Process(target=main, args=(spec, theirs, lifeline), name=f"learner {rank}", daemon=True)
            process.start()
            theirs.close()
            lifeline.close()
            self._processes.append(process)
            self._pipes.append(mine)
            self._lifelines.append(ours)
        answers = self._collect(list(range(self.cluster.learners)), keep_going)
        for rank in range(self.cluster.learners):
            if rank not in answers:
                raise LearnerDied(rank, self._reason(rank))
            if answers[rank].problem:
                raise RuntimeError(f"learner {rank} could not start:\n{answers[rank].text}")

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started, arena, learners = wall_clock(), self._arena, self.cluster.learners
        arena.counts.clear()
        for name, value in (
            ("queue", plan.first), ("round", plan.first_round), ("stop_round", plan.end_round), ("claim", NONE),
            ("returned", 0),
        ):  # fmt: skip
            arena.table(name)[:] = value
        self._lost = []
        synchronous = self.cluster.strategy.traits.synchronous
        while True:
            for name, value in (("published", 0), ("reduced", 0), ("assigned", NONE)):
                arena.table(name)[:] = value
            command = {
                "do": "segment", **plan.to_json(),
                "living": self._living(),
            }  # fmt: skip
            command["number"] = self._recorder.command(command) if self._recorder else 0
            answers = self._collect(self._command(json.dumps(command).encode()), watch)
            self._judge(answers, synchronous)
            if self._recorder:
                self._recorder.done(self.state(), tuple(self._living()), tuple(lost.rank for lost in self._lost))
            if synchronous or not self._left_over(plan.epoch.learners):
                break  # else: minibatches came back from the dead after the living had finished; train them too
        end = int(arena.table("round").max()) * learners if synchronous else int(arena.table("queue")[0])
        counts = arena.counts.copy()
        return Outcome(
            counts=counts,
            next=end,
            finished=end >= plan.end_round * learners,
            wall_seconds=wall_clock() - started,
            lost=tuple(self._lost),
        )

    def _left_over(self, learners: int) -> bool:
        """Is there anything to draw? Those who can are done, but minibatches may have come back from the dead, and all
        nodes may have lost somebody."""
        arena = self._arena
        return bool(arena.table("returned")[0] or arena.table("queue")[0] < arena.table("stop_round")[0] * learners)

    def _command(self, command: bytes) -> list[int]:
        """Send to all that live; the ranks it was sent to."""
        sent = []
        for rank in self._living():
            try:
                self._pipes[rank].send_bytes(command)
            except OSError:
                self._bury(rank)
            else:
                sent.append(rank)
        return sent

    def _collect(self, ranks: list[int], watch: Watch) -> dict[int, Answer]:
        """Wait for the answer, or the death, of each of `ranks`.

        Comes back with the answers so far as soon as one is a problem no other learner can mend: whoever waits for that
        learner would only be waited for in vain.

        Raises:
            TimeoutError: for twice as long as learners are patient none of them took a step or answered.
        """
        answers: dict[int, Answer] = {}
        idle, before = 0, (len(ranks), 0)
        open_ = set(ranks)
        pipes = {id(self._pipes[r]): r for r in ranks}
        next_look = wall_clock() + LOOK_SECONDS
        while open_ and not any(answer.problem in ("error", "timeout") for answer in answers.values()):
            waiting: list[Connection | int] = [self._pipes[r] for r in open_]
            sentinels = {self._processes[r].sentinel: r for r in open_}
            ready = wait([*waiting, *sentinels], timeout=max(0.0, next_look - wall_clock()))
            for item in ready:  # answers first: a learner may answer and then die
                if isinstance(item, Connection) and (rank := pipes[id(item)]) in open_:
                    try:
                        answers[rank] = Answer(**json.loads(item.recv_bytes()))
                    except (EOFError, OSError):
                        self._bury(rank)
                    open_.discard(rank)
            for item in ready:
                if isinstance(item, int) and (rank := sentinels[item]) in open_:
                    self._bury(rank)
                    open_.discard(rank)
            if wall_clock() >= next_look:
                next_look = wall_clock() + LOOK_SECONDS
                if watch(self._glance()):
                    self._stop()
                now = (len(open_), int(self._arena.counts.steps.sum()))
                idle, before = (idle + 1 if now == before else 0), now
                if idle * LOOK_SECONDS > 2 * self._patience_seconds:  # looks, not seconds: being suspended is no idling
                    raise TimeoutError(
                        f"learners {sorted(open_)} neither take a step nor answer, for {idle * LOOK_SECONDS:.0f} s"
                    )
        return answers

    def _judge(self, answers: dict[int, Answer], synchronous: bool) -> None:
        """Turn problems into exceptions; a death is one only where the strategy cannot go on."""
        for answer in answers.values():
            if answer.problem == "error":
                raise RuntimeError(f"learner {answer.rank} failed:\n{answer.text}")
        if self._lost and (synchronous or not self._living()):
            raise LearnerDied(self._lost[0].rank, self._lost[0].reason)
        for rank, answer in answers.items():
            if answer.problem == "lost":  # its node lost a member: what it worked on is for others to draw
                queue.give_back(self._arena, rank)
        late = [answer.text for answer in answers.values() if answer.problem == "timeout"]
        if late:
            raise TimeoutError("; ".join(late))

    def _glance(self) -> Glance:
        counts = self._arena.counts
        statistics = counts.statistics
        staleness = float(counts.stale_sum.sum() / max(1, counts.steps.sum()))
        return Glance(statistics.frames, statistics.mean_loss, staleness, len(self._living()))

    def _stop(self) -> None:
        """End after the round the furthest learner has begun, or its block. Draws happen under the same lock, so none
        is past it."""
        arena, learners = self._arena, self.cluster.learners
        arena.queue_lock.acquire()
        try:
            synchronous = self.cluster.strategy.traits.synchronous
            reached = int(arena.table("round").max()) if synchronous else -(-int(arena.table("queue")[0]) // learners)
            arena.table("stop_round")[0] = min(int(arena.table("stop_round")[0]), self.cluster.stop_round(reached))
        finally:
            arena.queue_lock.release()

    # Life and death ---------------------------------------------------------------------------------------------------

    def process_ids(self) -> list[int]:
        """Of the learners, by rank."""
        return [process.pid or 0 for process in self._processes]

    def _living(self) -> list[int]:
        return [rank for rank in range(self.cluster.learners) if self._arena.table("alive")[rank]]

    def _reason(self, rank: int) -> str:
        self._processes[rank].join(timeout=1.0)
        code = self._processes[rank].exitcode
        if code is not None and code < 0:
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit status {code}"

    def _bury(self, rank: int) -> None:
        """Mark a dead learner and give back the minibatch it worked on."""
        arena = self._arena
        if not arena.table("alive")[rank]:
            return
        arena.table("alive")[rank] = 0
        torn = " in the middle of writing a row" if rows_torn(arena.table("versions")) else ""
        self._lost.append(Lost(rank, self._reason(rank) + torn))
        if not self.cluster.strategy.traits.synchronous:
            queue.give_back(arena, rank)

    # State ------------------------------------------------------------------------------------------------------------

    def state(self) -> ClusterState:
        """A copy; a dead learner is given the state of a living one, as it would start with on return."""
        living = self._living()
        source = [rank if rank in living else living[0] for rank in range(self.cluster.learners)]
        names = ("row", *self.layout.memory)
        vectors = {name: self._arena.stacked(name, source) for name in names}
        if self.cluster.centre:
            vectors["centre"] = self.centre()[None].clone()
        if self.layout.scalars:
            vectors["scalars"] = torch.from_numpy(self._arena.scalars[source])
        return ClusterState(
            vectors=vectors,
            integers={name: self._arena.table(name).tolist() for name in ("steps", "versions")},
        )

    def load(self, state: ClusterState) -> None:
        if self._recorder:
            self._recorder.load(state)
        for name in ("row", *self.layout.memory):
            for rank in range(self.cluster.learners):
                self._arena.vector(name, rank).copy_(state.vectors[name][rank])
        if self.cluster.centre:
            self.centre().copy_(state.vectors["centre"][0])
        if self.layout.scalars:
            self._arena.scalars[:] = state.vectors["scalars"].numpy()
        for name in ("steps", "versions"):
            self._arena.table(name)[:] = state.integers[name]

    def rows(self) -> Tensor:
        return self._arena.stacked("row", self.cluster.strategy.holders(tuple(self._living())))

    def centre(self) -> Tensor:
        return self._arena.rows()[-1]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if process.is_alive():
                with suppress(OSError):
                    pipe.send_bytes(b'{"do": "quit"}')
        for lifeline in self._lifelines:
            lifeline.close()  # whoever did not hear "quit" ends now
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._lifelines = [], [], []
        self._arena.close()


def _start_fork_server() -> None:
    """Start it with interrupts blocked, which it and all learners inherit.

    Ctrl-C goes to every process of the terminal. Learners ignore it once they run, but importing and unpickling come
    first and take seconds, in which it would kill them.
    """
    resource_tracker.ensure_running()  # before: it would unblock interrupts again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
