"""State tying of phones in context: decision trees grown by likelihood (Young, Odell and Woodland 1994).

One tree for each state of each phone asks about the neighbours, "is the left one a nasal?". The classes of phones to
ask for are not given by hand but found by clustering the phones' means, every cluster on the way being a class (as
Kaldi's cluster-phones does). A node holds the frames of some contexts as one diagonal Gaussian; of all nodes of all
trees the one whose best question gains most likelihood is split next, until there are enough leaves:

Phones that differ only by their position in the word (AH_B, AH_I) share their trees, which then may ask for that
position, of the phone itself and of its neighbours (as Kaldi's shared roots and extra questions).

    L(n, x, xx) = -n/2 sum_d (log(2 pi v_d) + 1),   v = xx/n - (x/n)^2        n frames with sum x and sum of squares xx
    gain = L(yes) + L(no) - L(node)

Legend: T frames, D dimensions, C different contexts (left, phone, right, state), Q questions, P phones.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Float64, Ints
from roundelay_speech.hmm.topology import EDGE, SILENCE, STATES, Tying, phone_bounds
from roundelay_speech.lexicon.lexicon import POSITIONS, are_by_position, base_phone

LEFT, OWN, RIGHT = 0, 1, 2  # where a question looks, as places in a (left, phone, right) window
SIDES = {LEFT: "left", OWN: "own", RIGHT: "right"}
VARIANCE_FLOOR = 1e-3
TREE_VERSION = 1


@dataclass(frozen=True)
class Split:
    """An inner node: if the phone at `position` belongs to the class, go on at `yes`."""

    position: int  # LEFT, OWN or RIGHT
    phones: frozenset[int]
    yes: int
    no: int


@dataclass(frozen=True)
class Leaf:
    """A leaf of a tree, with its pdf."""

    pdf: int


@dataclass(frozen=True)
class DecisionTree:
    """The trees of all states of all phones."""

    phones: tuple[str, ...]  # names by id, from id 1, silence first
    context: int  # 1, 2 or 3, as in `Tying`
    # node by phone (from phone 1) and state; phones that share trees have the same ones.
    roots: tuple[tuple[int, ...], ...]
    nodes: tuple[Split | Leaf, ...]

    @property
    def num_pdfs(self) -> int:
        return len({node.pdf for node in self.nodes if isinstance(node, Leaf)})

    def tying(self) -> Tying:
        """Return the tying of every context, seen or not."""
        size = len(self.phones) + 1
        table = np.full((size, size, size, max(len(roots) for roots in self.roots)), -1, np.int32)
        for phone, roots in enumerate(self.roots, 1):
            for state, root in enumerate(roots):
                pending = [(root, np.ones(size, bool), np.ones(size, bool))]
                while pending:
                    place, left, right = pending.pop()
                    node = self.nodes[place]
                    if isinstance(node, Leaf):
                        table[:, phone, :, state][np.outer(left, right)] = node.pdf
                        continue
                    if node.position == OWN:
                        pending.append((node.yes if phone in node.phones else node.no, left, right))
                        continue
                    asked = np.isin(np.arange(size), sorted(node.phones))
                    if node.position == LEFT:
                        pending += [(node.yes, left & asked, right), (node.no, left & ~asked, right)]
                    else:
                        pending += [(node.yes, left, right & asked), (node.no, left, right & ~asked)]
        return Tying(self.phones, self.context, self.num_pdfs, table)

    def to_json(self) -> dict[str, Any]:
        """Return the trees as a plain mapping; the inverse of `from_json`."""
        nodes: list[dict[str, Any]] = []
        for node in self.nodes:
            if isinstance(node, Leaf):
                nodes.append({"pdf": node.pdf})
            else:
                nodes.append({"if": SIDES[node.position], "in": sorted(node.phones), "yes": node.yes, "no": node.no})
        return {
            "version": TREE_VERSION,
            "phones": list(self.phones),
            "context": self.context,
            "num_pdfs": self.num_pdfs,
            "roots": [list(roots) for roots in self.roots],
            "nodes": nodes,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "DecisionTree":
        """Return the trees in a mapping; raise a UserError (without a file name, which the caller adds) if it
        has none."""
        try:
            if value["version"] != TREE_VERSION:
                raise UserError("state tying of another version of Roundelay")
            nodes = tuple(
                Leaf(int(node["pdf"]))
                if "pdf" in node
                else Split(
                    {side: place for place, side in SIDES.items()}[node["if"]],
                    frozenset(node["in"]),
                    int(node["yes"]),
                    int(node["no"]),
                )
                for node in value["nodes"]
            )
            tree = cls(
                tuple(value["phones"]), int(value["context"]), tuple(tuple(roots) for roots in value["roots"]), nodes
            )
            pdfs = sorted({node.pdf for node in nodes if isinstance(node, Leaf)})  # phones may share one
            below = [n for node in nodes if isinstance(node, Split) for n in (node.yes, node.no)]
            roots = sorted({n for some in tree.roots for n in some})
            # Every node hangs from one other or is a root: no cycle, none lost.
            whole = pdfs == list(range(value["num_pdfs"])) and sorted(below + roots) == list(range(len(nodes)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"not a state tying ({error!r})") from error
        states = [len(roots) for roots in tree.roots]
        if not whole or len(states) != len(tree.phones) or states[0] < 1 or any(n != STATES for n in states[1:]):
            raise UserError("not a state tying (its nodes do not belong together)")
        return tree


def sharing(phones: Sequence[str]) -> list[tuple[int, ...]]:
    """Group phones (ids) that share their trees: the forms of one phone by position in the word; silence alone."""
    marked = are_by_position(phones)
    groups: dict[str, list[int]] = {}
    for number, phone in enumerate(phones, 1):
        groups.setdefault(base_phone(phone) if marked and number != SILENCE else phone, []).append(number)
    return [tuple(members) for members in groups.values()]


def _roots(phones: Sequence[str], silence_states: int) -> tuple[tuple[tuple[int, ...], ...], list[tuple[int, ...]]]:
    """Return (root by phone and state, the phones of each root): roots are nodes 0, 1, ... by sharing phones and
    state."""
    by_phone: dict[int, tuple[int, ...]] = {}
    owners: list[tuple[int, ...]] = []
    for group in sharing(phones):
        states = silence_states if SILENCE in group else STATES
        by_phone.update(dict.fromkeys(group, tuple(range(len(owners), len(owners) + states))))
        owners += [group] * states
    return tuple(by_phone[p] for p in range(1, len(phones) + 1)), owners


def untied(phones: Sequence[str], silence_states: int = STATES) -> DecisionTree:
    """Return monophones as trees without questions: pdf = 3 (phone - 1) + state, whatever the position in the word."""
    roots, owners = _roots(phones, silence_states)
    return DecisionTree(tuple(phones), 1, roots, tuple(Leaf(i) for i in range(len(owners))))


# ---------------------------------------------------------------------------------------------------------- growing


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of frames by context: the contexts, and count, sum and sum of squares of the frames of each."""

    contexts: npt.NDArray[np.int64]  # (C, 4): left, phone, right, state
    count: Float64  # (C,)
    sums: Float64  # (C, D)
    squares: Float64  # (C, D)


def windows(phones: Ints, states: Ints) -> npt.NDArray[np.int64]:
    """Return (T, 4): left neighbour, phone, right neighbour and state of every frame of ONE utterance, from its
    alignment.

    Neighbours beyond the ends are phone 0.
    """
    if not len(phones):
        return np.zeros((0, 4), np.int64)
    bounds = phone_bounds(phones, states)
    spoken = np.asarray(phones)[bounds[:-1]]
    place = np.repeat(np.arange(len(spoken)), np.diff(bounds))
    left = np.concatenate([[EDGE], spoken[:-1]])
    right = np.concatenate([spoken[1:], [EDGE]])
    return np.stack([left[place], phones, right[place], states], axis=1).astype(np.int64)


def accumulate(frames: npt.NDArray[np.float32], context: npt.NDArray[np.int64]) -> Statistics:
    """Sum frames (T, D) by their context (T, 4); return the statistics."""
    size = int(context[:, :3].max()) + 1
    key = ((context[:, 3] * size + context[:, 1]) * size + context[:, 0]) * size + context[:, 2]
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(place).astype(np.float64)
    columns = [frames[:, d].astype(np.float64) for d in range(frames.shape[1])]
    sums = [np.bincount(place, column).astype(np.float64) for column in columns]
    squares = [np.bincount(place, column * column).astype(np.float64) for column in columns]
    return Statistics(context[first], count, np.stack(sums, axis=1), np.stack(squares, axis=1))


def likelihood(count: Float64, sums: Float64, squares: Float64) -> Float64:
    """Return the log-likelihood of frames under the Gaussian that fits them best; counts (...), sums and squares (...,
    D)."""
    n = np.maximum(count, 1e-9)[..., None]
    variance = np.maximum(squares / n - (sums / n) ** 2, VARIANCE_FLOOR)
    result: Float64 = -0.5 * count * (np.log(2 * np.pi * variance) + 1).sum(-1)
    return result


def phone_classes(means: Float64, counts: Float64) -> list[frozenset[int]]:
    """Return the classes of phones for questions: the utterance edge, each phone, and every cluster found by merging
    the closest two.

    Closeness is Ward's: the squared distance that merging adds, n_a n_b / (n_a + n_b) |m_a - m_b|^2. Row p of `means`
    (P, D) belongs to phone p + 1.
    """
    clusters = [(frozenset([p + 1]), means[p], float(counts[p])) for p in range(len(means))]
    found = [frozenset([EDGE]), *(members for members, _, _ in clusters)]
    while len(clusters) > 2:
        centre, weight = np.stack([m for _, m, _ in clusters]), np.array([n for _, _, n in clusters])
        distance = ((centre[:, None] - centre[None]) ** 2).sum(-1)
        distance *= weight[:, None] * weight[None] / (weight[:, None] + weight[None])
        distance[np.tril_indices(len(clusters))] = np.inf
        a, b = (int(i) for i in np.unravel_index(distance.argmin(), distance.shape))
        (phones_a, mean_a, n_a), (phones_b, mean_b, n_b) = clusters[a], clusters[b]
        merged = (phones_a | phones_b, (n_a * mean_a + n_b * mean_b) / (n_a + n_b), n_a + n_b)
        clusters = [c for i, c in enumerate(clusters) if i not in (a, b)] + [merged]
        found.append(merged[0])
    return found


def grow(
    statistics: Statistics,
    phones: Sequence[str],
    leaves: int,
    *,
    context: int = 3,
    silence_states: int = STATES,
    min_frames: float = 50.0,
    min_gain: float = 100.0,
) -> DecisionTree:
    """Grow the trees of all states of all phones to at most `leaves` leaves together; silence is never split.

    Args:
        context: 3 for questions on both neighbours, 2 on the left one only.
        min_frames: fewest frames of a leaf.
        min_gain: least gain of a split in log-likelihood (nats, over all frames of the node).
    """
    questions = _Questions(statistics, phones, context, min_frames)
    # Numbers break ties between equal gains, so that the heap never compares arrays.
    heap: list[tuple[float, int, npt.NDArray[np.int64], int, npt.NDArray[np.bool_]]] = []
    nodes: list[tuple[int, int, int] | None] = []  # (question, yes, no), or None for a leaf

    def add(members: npt.NDArray[np.int64], splittable: bool = True) -> int:
        gain, question, yes = questions.best(members) if splittable else (0.0, -1, np.zeros(0, bool))
        nodes.append(None)
        if question >= 0:
            heapq.heappush(heap, (-gain, len(nodes) - 1, members, question, yes))
        return len(nodes) - 1

    roots, owners = _roots(phones, silence_states)
    for root, group in enumerate(owners):
        state = roots[group[0] - 1].index(root)
        own = np.isin(statistics.contexts[:, 1], group) & (statistics.contexts[:, 3] == state)
        add(np.flatnonzero(own), SILENCE not in group)
    count = len(owners)
    while count < leaves and heap and -heap[0][0] >= min_gain:
        _, node, members, question, yes = heapq.heappop(heap)
        nodes[node] = question, add(members[yes]), add(members[~yes])
        count += 1
    return _numbered(phones, context, roots, nodes, questions)


class _Questions:
    """All questions at once: for a node, the gain of every one is three matrix products."""

    def __init__(self, statistics: Statistics, phones: Sequence[str], context: int, min_frames: float) -> None:
        self.statistics, self.min_frames = statistics, min_frames
        middle = statistics.contexts[:, 3] == STATES // 2
        groups = sharing(phones)
        counts, means = np.full(len(groups), 1e-6), np.zeros((len(groups), statistics.sums.shape[1]))
        for g, group in enumerate(groups):
            own = middle & np.isin(statistics.contexts[:, 1], group)
            if own.any():
                counts[g] = statistics.count[own].sum()
                means[g] = statistics.sums[own].sum(0) / counts[g]
        sounds = [
            frozenset(p for g in some for p in (groups[g - 1] if g != EDGE else (EDGE,)))
            for some in phone_classes(means, counts)
        ]
        places = _position_classes(phones)
        self.asked = [(side, members) for side in (LEFT, RIGHT)[: context - 1] for members in [*sounds, *places]]
        self.asked += [(OWN, members) for members in places]
        # (Q, C): whether the answer to question q in context c is yes.
        self.answers = np.stack([np.isin(statistics.contexts[:, p], sorted(m)) for p, m in self.asked])

    def best(self, members: npt.NDArray[np.int64]) -> tuple[float, int, npt.NDArray[np.bool_]]:
        """Return the best question for a node: (gain, question, members with answer yes); question -1 if none leaves
        enough frames on both sides."""
        s = self.statistics
        count, sums, squares = s.count[members], s.sums[members], s.squares[members]
        answers = self.answers[:, members].astype(np.float64)
        yes = answers @ count, answers @ sums, answers @ squares
        everything = count.sum(), sums.sum(0), squares.sum(0)
        no = everything[0] - yes[0], everything[1] - yes[1], everything[2] - yes[2]
        gains = likelihood(*yes) + likelihood(*no) - likelihood(*everything)
        gains[(yes[0] < self.min_frames) | (no[0] < self.min_frames)] = -np.inf
        question = int(gains.argmax())
        if gains[question] == -np.inf:
            return 0.0, -1, np.zeros(0, bool)
        return float(gains[question]), question, answers[question] > 0


def _position_classes(phones: Sequence[str]) -> list[frozenset[int]]:
    """Return the classes of phones at the beginning of a word, at its end, inside and alone, and unions of two; empty
    if phones have no marks."""
    if not are_by_position(phones):
        return []
    begin, end, inside, single = (
        {number for number, phone in enumerate(phones, 1) if number != SILENCE and phone.endswith(mark)}
        for mark in POSITIONS
    )
    pairs = (begin | single, end | single, begin | inside)  # the other three pairs are the other side of these
    return [frozenset(members) for members in (begin, end, inside, single, *pairs)]


def _numbered(
    phones: Sequence[str],
    context: int,
    roots: Sequence[tuple[int, ...]],
    nodes: Sequence[tuple[int, int, int] | None],
    questions: _Questions,
) -> DecisionTree:
    """Number the leaves by phone, state and place in the tree, so that pdfs of one phone are adjacent; return the
    trees."""
    pdf: dict[int, int] = {}
    pending = list(dict.fromkeys(root for some in roots for root in some))[::-1]
    while pending:
        place = pending.pop()
        node = nodes[place]
        if node is None:
            pdf[place] = len(pdf)
        else:
            pending += [node[2], node[1]]
    finished: list[Split | Leaf] = []
    for place, node in enumerate(nodes):
        if node is None:
            finished.append(Leaf(pdf[place]))
        else:
            position, members = questions.asked[node[0]]
            finished.append(Split(position, members, node[1], node[2]))
    return DecisionTree(tuple(phones), context, tuple(roots), tuple(finished))
