"""Laws of links in the simulator: what a pause costs."""

from dataclasses import replace

import pytest

from roundelay.algorithms.local_update import Sgd
from roundelay.learner.timing import TimingOnly
from roundelay.runtime.base import Cluster
from roundelay.runtime.sim.cluster import Compute, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import make_strategy, plan


def seconds(strategy: str, virtual: VirtualCluster) -> float:
    """Of twenty rounds."""
    work = Cluster(make_strategy(strategy), TimingOnly(), Sgd(), virtual.learners, seed=1)
    return SimRuntime(work, CostModel(cluster=virtual)).segment(plan(20, virtual.learners)).virtual_seconds or 0.0


@pytest.mark.parametrize(("idle", "slow"), [(0.2, 2), (0.6, 1)])
def test_a_mean_of_models_takes_longer_after_a_pause_as_the_link_says(idle: float, slow: int) -> None:
    """Blocks of four steps of 0.1 s: links rest for 0.4 s. On paper."""
    between = VirtualLink(bandwidth=100.0, restart=1.5, idle=idle)
    two = VirtualCluster(
        nodes=(Node(count=2),), compute=Compute(seconds=0.1), links=VirtualLinks(between=between), model_bytes=10
    )
    means = 0.1 * (5 * 1.5 if slow == 2 else 1.5 + 4)  # the first one finds connections that have carried nothing
    assert seconds("bsp,period=4", two) == pytest.approx(20 * 0.1 + means)
    assert seconds("ssgd", two) == pytest.approx(20 * 0.2)  # means of gradients go while these are computed
    one = replace(two, nodes=(Node(2),))
    assert seconds("bsp,period=4", one) == seconds("bsp,period=4", replace(one, links=VirtualLinks()))
