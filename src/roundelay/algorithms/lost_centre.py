"""The centre, made again where its host is lost, from vectors of the living learners.

*A copy.* Where a learner keeps p, the centre as it has read it last, the newest copy is the centre as it was then:

    w~ = p_l of the living learner l that has read the newest version v of the centre;  its version is v again

A report counts in it if it came before that reading. Lost are: reports that came later, all of learners that are
lost too, or under way, and these are still in their learner's w - p and are given again. (One that the centre took
without a word back may so count twice, if another learner has read the centre in between.)
With a quorum (docs/quorum.md) p_l is the model that learner l goes on from, so w~ is that of the last gathering that
any of them has read. What was given after it is lost, but that of learners who wait: they give it again.

*The mean of rows.* Where learners keep no copy, but springs tie their rows to the centre (elastic.py), in equilibrium
it is their mean:

    w~ = mean over the living l of w_l

Either way the vectors beside the centre, as momentum, begin at zero.
"""

from collections.abc import Mapping

ROW = "row"
"""Name of the vector of which the mean is taken."""


def made_of(vector: str, read: Mapping[int, int]) -> list[int]:
    """Return the ranks of the learners from whose `vector` the centre is made again: all the living for their rows,
    else the one with the newest copy (of several, the lowest rank); empty if no learner lives.

    Args:
        read: for each living learner, by rank, the version of the centre that it read last.
    """
    if vector == ROW:
        return sorted(read)
    return sorted(read, key=lambda rank: (-read[rank], rank))[:1]
