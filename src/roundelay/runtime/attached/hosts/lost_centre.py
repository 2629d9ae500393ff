"""A centre that is lost with the host that led, on the host that leads in its place.

Learners that reach for it wait meanwhile (`Outbox.takes`), and what they had asked of the lost host comes to nothing
and is asked again of this one.
"""

from collections.abc import Mapping

from roundelay.algorithms.lost_centre import ROW, made_of
from roundelay.runtime.attached.between_hosts import take_mean
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.hosts.control.membership import HostMembership
from roundelay.runtime.hosts.control.mirrors import bring


def make_again(host: SessionHost, hosts: HostMembership, read: Mapping[int, int]) -> str:
    """Make the centre again on this host; return what it is made of, in a sentence. Not under the host's gate.

    Args:
        read: by rank, the version of the centre that learners have read last.

    Raises:
        TimeoutError: a host lives and does not send what its learners have.
    """
    arena, vector, living = host.arena, host.strategy.traits.rebuilt_from, host.living()
    while True:
        sources = made_of(vector, {rank: read.get(rank, 0) for rank in living})
        bring(hosts, arena, [vector], (), (), [rank for rank in sources if rank not in host.here])
        living = host.living()
        if {*sources} <= {*living}:  # else one was lost meanwhile, and what came of it may be a part
            break
    rows, version = arena.rows(), max((read.get(rank, 0) for rank in sources), default=0)
    found = []
    for rank in sources:
        with rows[rank].lock:
            found.append(arena.vector(vector, rank).clone())
    centre = rows[-1]
    with centre.writing():
        if found:
            take_mean(centre.vector, found, None)
        for beside in centre.memory.values():
            beside.zero_()
    arena.row_versions.versions[centre.rank] = 2 * version  # ages of reports go on from there
    host.centre_is_at(host.here[0], int(host.between.made_again[0]) + 1)
    learners = f"learner{'s' * (len(sources) > 1)} {', '.join(map(str, sources)) or 'none'}"
    what = f"the mean of the rows of {learners}" if vector == ROW else f"the centre as {learners} had read it last"
    begins = f"; beside it {', '.join(centre.memory)} begin at zero" if centre.memory else ""
    return f"the centre is lost with its host, and made again on that of learner {host.here[0]}: {what}{begins}"
