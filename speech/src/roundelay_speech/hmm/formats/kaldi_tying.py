"""Kaldi's trees as ours.

A Kaldi tree asks about phones by its own ids and about states by their class; ours has a root for every state of every
phone of the lexicon and asks about the neighbours only. So a Kaldi tree is taken apart: for each phone and state, what
it asks of the neighbours once those two are known.

A tree that tells the positions of a phone in the word apart fits only a lexicon whose phones have positions too. Our
phones have three states; a phone with more (Kaldi's silence has five) gives its first and its last one, and all between
become one state with one pdf.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundelay.core.errors import UserError
from roundelay_speech.hmm.formats.kaldi_model import (
    PDF_CLASS,
    Answer,
    ContextDependency,
    EventMap,
    HmmState,
    Question,
    TableMap,
)
from roundelay_speech.hmm.formats.kaldi_phones import PhoneMap
from roundelay_speech.hmm.topology import EDGE, STATES
from roundelay_speech.hmm.tree import LEFT, RIGHT, DecisionTree, Leaf, Split


@dataclass(frozen=True, eq=False)
class ImportedTying:
    """A Kaldi tree as ours."""

    tree: DecisionTree
    pdfs: Mapping[int, int]  # Kaldi's pdf -> ours; several of Kaldi's may have become one
    exact: bool  # none have, and each of our phones stands for all of Kaldi's that are called so


def our_state(state: int, count: int) -> int:
    """Return our state for one of `count`: the first, the last, or in between."""
    return 0 if state == 0 else STATES - 1 if state == count - 1 else min(state, STATES - 2)


def import_tying(
    tree: ContextDependency,
    topology: Mapping[int, Sequence[HmmState]] | None,
    phones: PhoneMap,
    names: Sequence[str],
    where: str,
) -> ImportedTying:
    """Take a Kaldi tree apart.

    Args:
        topology: of Kaldi's phones; None: as many states as the tree has classes, each with its own.
        names: our phones.
        where: names the tree in messages.

    Raises:
        UserError: the tree looks further than one neighbour to each side, a phone has fewer than three states or a loop
            with a pdf of its own, or positions in words are told apart that the lexicon does not know.
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
    """Return the classes of each of our three states."""
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
    """Return the number of classes of states a tree has for a phone: as many as its tables tell apart."""
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
    """A tree being taken apart; remembers which pdfs had to become one."""

    def __init__(self, tree: ContextDependency, phones: PhoneMap, where: str) -> None:
        self._tree, self._phones, self._where = tree, phones, where
        self._become: dict[int, int] = {}

    def pdf(self, pdf: int) -> int:
        """Return the pdf that stands for this one."""
        while pdf in self._become:
            pdf = self._become[pdf]
        return pdf

    @property
    def merged(self) -> bool:
        return bool(self._become)

    def merge(self, several: Sequence[_Plain]) -> _Plain:
        """Return the answer that stands for several states: the one there is, or one pdf for all."""
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
        """Return the questions that are left for a class of states of a phone."""
        return self._special(self._tree.to_pdf, phone, pdf_class)

    def _special(self, node: EventMap | None, phone: int, pdf_class: int) -> _Plain:
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
        """Return a table by neighbour as a row of questions; neighbours never seen go with the last."""
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
        """Return our phones for Kaldi's."""
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
    """Number the pdfs that are left, in Kaldi's order, and lay the trees out."""
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
