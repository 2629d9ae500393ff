"""The centre that is made again where its host is lost, from what the living learners have.

*A copy.* Where a learner keeps p, the centre as it has read it last, the newest copy is the centre as it was then:

    w~ = p_l of the living learner l that has read the newest version v of the centre;  its version is v again

A report counts in it if it came before that reading. What is lost: reports that came later, all of learners that are
lost too, or under way, and these are still in their learner's w - p and are given again. (One that the centre took
without a word back may so count twice, if somebody else has read the centre in between.)

*The mean of rows.* Where learners keep no copy, but springs tie their rows to the centre (elastic.py), in equilibrium
it is their mean:

    w~ = mean over the living l of w_l

Either way what lies beside the centre, as momentum, begins at zero.
"""

from collections.abc import Mapping

ROW = "row"
"""The vector of which the mean is taken."""


def made_of(vector: str, read: Mapping[int, int]) -> list[int]:
    """Return the learners of whose `vector` the centre is made again: all, or the one with the newest copy, of several
    the one with the lowest rank; none, where nobody lives.

    Args:
        read: by rank of the living, the version of the centre that each has read last.
    """
    if vector == ROW:
        return sorted(read)
    return sorted(read, key=lambda rank: (-read[rank], rank))[:1]
