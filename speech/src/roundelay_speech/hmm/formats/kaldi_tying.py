"""Kaldi's trees and phones as ours, and our trees and states as Kaldi's.

A Kaldi tree asks about phones by its own ids and about states by their class; ours has a root for every state of every
phone of the lexicon and asks about the neighbours only. So a Kaldi tree is taken apart: for each phone and state, its
questions on the neighbours once those two are known.

A tree that tells the positions of a phone in the word apart fits only a lexicon whose phones have positions too. Our
phones have three states; a phone with more (Kaldi's silence has five) gives its first and its last one, and all between
become one state with one pdf.

The name of a phone is taken as it is, then without Kaldi's position in the word (_B, _I, _E, _S).

Legend: T frames of one utterance.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import read_text
from roundelay_speech.data.problems import listing
from roundelay_speech.hmm.formats.kaldi_model import (
    PDF_CLASS,
    Answer,
    ContextDependency,
    EventMap,
    HmmState,
    Question,
    TableMap,
    TransitionModel,
)
from roundelay_speech.hmm.topology import EDGE, SILENCE, STATES, transitions
from roundelay_speech.hmm.tree import LEFT, OWN, RIGHT, DecisionTree, Leaf, Split

POSITION = re.compile(r"(.+)_[BIES]")
_NO_PHONE = re.compile(r"<eps>|#\d+|#.*")


@dataclass(frozen=True)
class PhoneMap:
    """A map between Kaldi's phones and the lexicon's."""

    ours: Mapping[int, int]  # Kaldi's id -> ours; only phones that the lexicon has
    names: Mapping[int, str]  # Kaldi's id -> its name
    # by our id, from 1: Kaldi's phones that are this phone. Of silence the plain one alone, where there is one:
    # silences in a position of a word are rare, and trees seldom hold a pdf of their own for them.
    members: tuple[tuple[int, ...], ...]


def read_symbols(path: Path) -> dict[str, int]:
    """Read a `phones.txt`: a name and a number on every line.

    Raises:
        UserError: the file is missing, or a line is something else; names file and line.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(path, "Kaldi's phones.txt is needed").split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or not fields[1].isdecimal() or len(fields[1]) > 9:
            raise UserError(f"{path}:{number}: not `PHONE NUMBER` but `{line.strip()[:80]}`.")
        if fields[0] in found or int(fields[1]) in found.values():
            raise UserError(f"{path}:{number}: {fields[0]} or its number is there already.")
        found[fields[0]] = int(fields[1])
    if not found:
        raise UserError(f"{path}: no phones in it.")
    return found


def match_phones(symbols: Mapping[str, int], phones: Sequence[str], where: str) -> PhoneMap:
    """Match the phones of `phones.txt` to those of the lexicon (in the order of our ids, silence first).

    Raises:
        UserError: a phone of the lexicon is not among Kaldi's; all are listed.
    """
    ids = {name: place for place, name in enumerate(phones, 1)}
    ours: dict[int, int] = {}
    names: dict[int, str] = {}
    for name, number in symbols.items():
        if _NO_PHONE.fullmatch(name):
            continue
        names[number] = name
        base = POSITION.fullmatch(name)
        found = ids.get(name) or (ids.get(base[1]) if base else None)
        if found is not None and number:
            ours[number] = found
    members: list[tuple[int, ...]] = []
    for name, place in ids.items():
        own = tuple(number for number, phone in sorted(ours.items()) if phone == place)
        members.append((symbols[name],) if place == SILENCE and symbols.get(name) in own else own)
    if absent := [name for name, own in zip(phones, members, strict=True) if not own]:
        raise UserError(
            f"{where}: {len(absent)} phones of the lexicon are not among Kaldi's, with or without a position (_B, _I, "
            f"_E, _S). Name the silence as Kaldi does, and take the lexicon the alignment was made with:\n"
            f"{listing(absent)}"
        )
    return PhoneMap(ours, names, tuple(members))


@dataclass(frozen=True, eq=False)
class ImportedTying:
    """A tree of Kaldi's, converted to ours."""

    tree: DecisionTree
    pdfs: Mapping[int, int]  # Kaldi's pdf -> ours; several of Kaldi's may have become one
    exact: bool  # none have, and each of our phones stands for all of Kaldi's that are called so


def our_state(state: int, count: int) -> int:
    """Return our state for state `state` of `count`: the first, the last, or the one in between."""
    return 0 if state == 0 else STATES - 1 if state == count - 1 else min(state, STATES - 2)


def import_tying(
    tree: ContextDependency,
    topology: Mapping[int, Sequence[HmmState]] | None,
    phones: PhoneMap,
    names: Sequence[str],
    where: str,
) -> ImportedTying:
    """Convert a tree of Kaldi's to ours.

    Args:
        topology: topology of Kaldi's phones; None: as many states as the tree has classes, each with its own.
        names: our phones.
        where: names the tree in messages.

    Raises:
        UserError: the tree looks further than one neighbour to each side, a phone has fewer than three states or a loop
            with a pdf of its own, or the tree distinguishes positions in words that the lexicon does not know.
    """
    context = {(1, 0): 1, (2, 1): 2, (3, 1): 3}.get((tree.width, tree.centre))
    if context is None:
        raise UserError(
            f"{where}: a window of {tree.width} phones with the one in question at place {tree.centre}. Monophones (1 "
            "0), left biphones (2 1) and triphones (3 1) can be used; import the phones alone (--tying monophones or "
            "--tying grow)."
        )
    apart = _Apart(tree, phones, where)
    roots = []
    for own in phones.members:
        triples = []
        for member in own:
            classes = _classes(tree, topology, member, phones.names[member], where)
            triples.append(tuple(apart.merge([apart.specialised(member, c) for c in some]) for some in classes))
        if len(set(triples)) > 1:
            raise _positions(where, [phones.names[member] for member in own])
        roots.append(triples[0])
    exact = not apart.merged and sum(map(len, phones.members)) == len(phones.ours)
    return _assembled(roots, apart, context, names, exact)


def _classes(
    tree: ContextDependency, topology: Mapping[int, Sequence[HmmState]] | None, phone: int, name: str, where: str
) -> tuple[tuple[int, ...], ...]:
    """Return Kaldi's classes of states for each of our three states of a phone."""
    if topology is None:
        own = list(range(_number_of_classes(tree.to_pdf, tree.centre, phone)))
    elif phone not in topology:
        raise UserError(f"{where}: phone {name} has no topology in the transition model; they do not belong together.")
    else:
        emitting = topology[phone][:-1]
        own = [state.pdf_class for state in emitting]
        if any(state.loop_class != state.pdf_class for state in emitting) or min(own) < 0:
            raise UserError(
                f"{where}: the loops of phone {name} have pdfs of their own (a chain model), which cannot be imported. "
                "Take the alignment of the Gaussian mixtures the chain model was made from."
            )
    if len(own) < STATES:
        raise UserError(
            f"{where}: phone {name} has {len(own)} states, and phones here have {STATES}. Take an alignment made with "
            "three states for a phone."
        )
    ours = [our_state(place, len(own)) for place in range(len(own))]
    return tuple(
        tuple(dict.fromkeys(c for c, s in zip(own, ours, strict=True) if s == state)) for state in range(STATES)
    )


def _number_of_classes(node: EventMap | None, centre: int, phone: int) -> int:
    """Return the number of classes of states that a tree's tables distinguish for a phone."""
    if isinstance(node, Question):
        if node.key == centre:
            return _number_of_classes(node.yes if phone in node.values else node.no, centre, phone)
        return max(_number_of_classes(node.yes, centre, phone), _number_of_classes(node.no, centre, phone))
    if isinstance(node, TableMap):
        if node.key == PDF_CLASS:
            return len(node.entries)
        if node.key == centre:
            return _number_of_classes(node.entries[phone], centre, phone) if phone < len(node.entries) else 0
        return max((_number_of_classes(entry, centre, phone) for entry in node.entries), default=0)
    return STATES if node is not None else 0


_Plain = int | tuple[int, frozenset[int], "_Plain", "_Plain"]
"""A question about the neighbours: a pdf, or (LEFT or RIGHT, our phones, yes, no)."""


class _Apart:
    """A conversion of a tree under way, which notes the pdfs that had to become one."""

    def __init__(self, tree: ContextDependency, phones: PhoneMap, where: str) -> None:
        self._tree, self._phones, self._where = tree, phones, where
        self._become: dict[int, int] = {}

    def pdf(self, pdf: int) -> int:
        """Return the pdf that `pdf` was merged into."""
        while pdf in self._become:
            pdf = self._become[pdf]
        return pdf

    @property
    def merged(self) -> bool:
        return bool(self._become)

    def merge(self, several: Sequence[_Plain]) -> _Plain:
        """Merge the answers for several states: the common one, or one pdf for all."""
        if len(set(several)) == 1:
            return several[0]
        pdfs = []
        for one in several:
            if not isinstance(one, int):
                raise UserError(
                    f"{self._where}: a phone with more than three states whose inner ones depend on neighbours cannot "
                    "be imported. Import the phones alone (--tying monophones or --tying grow)."
                )
            pdfs.append(self.pdf(one))
        for other in set(pdfs) - {min(pdfs)}:
            self._become[other] = min(pdfs)
        return min(pdfs)

    def specialised(self, phone: int, pdf_class: int) -> _Plain:
        """Return the questions that remain in the tree for a class of states of a phone."""
        return self._special(self._tree.to_pdf, phone, pdf_class)

    def _special(self, node: EventMap | None, phone: int, pdf_class: int) -> _Plain:
        """Return the map of a phone's class below `node`, left with questions on its neighbours alone."""
        if node is None:
            raise UserError(
                f"{self._where}: the tree has no pdf for class {pdf_class} of phone "
                f"{self._phones.names.get(phone, phone)}. Tree, transition model and phones.txt do not belong together."
            )
        if isinstance(node, Answer):
            return node.pdf
        known = {self._tree.centre: phone, PDF_CLASS: pdf_class}.get(node.key)
        if known is not None:
            if isinstance(node, Question):
                return self._special(node.yes if known in node.values else node.no, phone, pdf_class)
            entry = node.entries[known] if known < len(node.entries) else None
            return self._special(entry, phone, pdf_class)
        if not 0 <= node.key < self._tree.width:
            raise UserError(f"{self._where}: the tree asks about place {node.key} of {self._tree.width}.")
        side = LEFT if node.key < self._tree.centre else RIGHT
        if isinstance(node, Question):
            asked = self._asked(node.values)
            if not asked or len(asked) > len(self._phones.members):  # none, or all phones and the edge
                return self._special(node.yes if asked else node.no, phone, pdf_class)
            return self._split(side, asked, *(self._special(n, phone, pdf_class) for n in (node.yes, node.no)))
        return self._table(node, side, phone, pdf_class)

    def _split(self, side: int, asked: frozenset[int], yes: _Plain, no: _Plain) -> _Plain:
        return yes if yes == no else (side, asked, yes, no)

    def _table(self, node: TableMap, side: int, phone: int, pdf_class: int) -> _Plain:
        """Convert a table by neighbour to successive questions; neighbours never seen go with the last."""
        answers: dict[_Plain, set[int]] = {}
        for ours, own in enumerate([(0,), *self._phones.members]):
            entries = {
                self._special(e, phone, pdf_class) for k in own if k < len(node.entries) and (e := node.entries[k])
            }
            if len(entries) > 1:
                raise _positions(self._where, [self._phones.names[k] for k in own])
            for entry in entries:
                answers.setdefault(entry, set()).add(ours)
        if not answers:
            return self._special(None, phone, pdf_class)
        *first, (last, _) = answers.items()
        for entry, asked in reversed(first):
            last = self._split(side, frozenset(asked), entry, last)
        return last

    def _asked(self, values: frozenset[int]) -> frozenset[int]:
        """Return our phones for a set of Kaldi's."""
        found = {EDGE} if 0 in values else set()
        for ours, own in enumerate(self._phones.members, 1):
            inside = [k for k in own if k in values]
            if inside and len(inside) < len(own):
                raise _positions(self._where, [self._phones.names[k] for k in own])
            if inside:
                found.add(ours)
        return frozenset(found)


def _positions(where: str, names: Sequence[str]) -> UserError:
    return UserError(
        f"{where}: the tree tells {', '.join(names)} apart, the lexicon does not. Prepare the corpus with a lexicon "
        "whose phones have positions (Kaldi's lexicon of lang/phones), or import the phones alone (--tying monophones "
        "or --tying grow)."
    )


def _assembled(
    roots: Sequence[tuple[_Plain, ...]],
    apart: _Apart,
    context: int,
    names: Sequence[str],
    exact: bool,
) -> ImportedTying:
    """Number the remaining pdfs in Kaldi's order, and build our tree from the parts."""
    used: set[int] = set()

    def collect(plain: _Plain) -> None:
        if isinstance(plain, int):
            used.add(plain)
        else:
            collect(plain[2])
            collect(plain[3])

    for root in itertools.chain.from_iterable(roots):
        collect(root)
    number = {pdf: place for place, pdf in enumerate(sorted({apart.pdf(pdf) for pdf in used}))}
    nodes: list[Split | Leaf] = []

    def place(plain: _Plain) -> int:
        here = len(nodes)
        if isinstance(plain, int):
            nodes.append(Leaf(number[apart.pdf(plain)]))
            return here
        nodes.append(Leaf(0))
        nodes[here] = Split(plain[0], plain[1], place(plain[2]), place(plain[3]))
        return here

    laid = tuple(tuple(place(root) for root in triple) for triple in roots)
    tree = DecisionTree(tuple(names), context, laid, tuple(nodes))
    return ImportedTying(tree, {pdf: number[apart.pdf(pdf)] for pdf in used}, exact)


LOOP, ON = 0.75, 0.25  # probabilities of Kaldi's usual topology, before training


def export_tree(tree: DecisionTree) -> ContextDependency:
    """Convert our tree to Kaldi's form, with our ids: a table of phones, in it tables of states, in them the
    questions."""
    centre = min(1, tree.context - 1)
    asked = {LEFT: 0, OWN: centre, RIGHT: 2}

    def of(place: int) -> EventMap:
        node = tree.nodes[place]
        if isinstance(node, Leaf):
            return Answer(node.pdf)
        return Question(asked[node.position], node.phones, of(node.yes), of(node.no))

    phones = [TableMap(PDF_CLASS, tuple(of(root) for root in roots)) for roots in tree.roots]
    return ContextDependency(tree.context, centre, TableMap(centre, (None, *phones)))


def export_transition_model(tree: DecisionTree) -> TransitionModel:
    """Make the transition model of our tree: the states of every phone from left to right; all triples that the tree
    can give, in Kaldi's order."""
    sizes = [len(roots) for roots in tree.roots]
    entries = {size: _entry(size) for size in set(sizes)}
    table = tree.tying().table
    triples = [
        (phone, state, pdf, pdf)
        for phone, size in enumerate(sizes, 1)
        for state in range(size)
        for pdf in np.unique(table[:, phone, :, state]).tolist()
    ]
    topology = {phone: entries[size] for phone, size in enumerate(sizes, 1)}
    ways = (probability for phone, state, *_ in triples for _, probability in topology[phone][state].transitions)
    return TransitionModel(topology, tuple(triples), np.log(np.array([1.0, *ways], np.float32)))


def _entry(size: int) -> tuple[HmmState, ...]:
    """Return the topology of a phone with `size` states: each loops, or goes on to any that may follow it."""
    follow = [[after for before, after in transitions(size) if before == state] or [size] for state in range(size)]
    ways = [((state, LOOP), *((after, ON / len(on)) for after in on)) for state, on in enumerate(follow)]
    return (*(HmmState(state, state, way) for state, way in enumerate(ways)), HmmState(-1, -1, ()))


def transition_ids(
    model: TransitionModel,
    phones: npt.NDArray[np.int16],
    states: npt.NDArray[np.int8],
    pdfs: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """Return the transition-ids (T,) of an utterance's frames: a way out of a state at its first frame, then its loop,
    which is the order that Kaldi's own alignments have (--reorder=true). Of several ways out of a state, the first is
    used."""
    place = {(phone, state, pdf): i for i, (phone, state, pdf, _) in enumerate(model.tuples)}
    keys = zip(phones.tolist(), states.tolist(), pdfs.tolist(), strict=True)
    first = model.first_ids[[place[key] for key in keys]]
    stays = np.zeros(len(phones), bool)
    stays[1:] = (phones[1:] == phones[:-1]) & (states[1:] == states[:-1])
    return (first + np.where(stays, 0, 1)).astype(np.int32)
