"""The transducers a decoding graph is composed of, besides the language model: L, and H at once composed."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roundelay_speech.bindings import kaldifst
from roundelay_speech.hmm.topology import EDGE, PhoneState, Tying, transitions
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.ngrams.ngram import BEGIN, END
from roundelay_speech.search.fst import ARC, Arcs, Fst

EPSILON, BACKOFF = "<eps>", "#0"


@dataclass(frozen=True)
class Symbols:
    """Ids of words and phones, 0 is epsilon; disambiguation symbols follow the phones, #0 <s> </s> the words."""

    words: tuple[str, ...]
    phones: tuple[str, ...]
    disambiguation: tuple[str, ...]  # "#0" for back-off, "#1" ... for the lexicon

    @property
    def word_ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @property
    def phone_ids(self) -> dict[str, int]:
        return {phone: i for i, phone in enumerate((*self.phones, *self.disambiguation))}


def compiled(lines: Sequence[str]) -> Fst:
    """Return the transducer that lines of text say, sorted by output label."""
    fst = kaldifst.compile("\n".join([*lines, ""]), acceptor=False)
    kaldifst.arcsort(fst, "olabel")
    return fst


def lexicon_transducer(
    lexicon: Lexicon, phones: Sequence[str], silence_probability: float | None
) -> tuple[Symbols, Fst]:
    """Build the lexicon transducer L, phones to words. Its only costs are those of silence, or its absence, at the
    start and after each word; None: no silences at all.

    Args:
        phones: phones in the order of their ids, from 1; those of the lexicon, and perhaps more.

    A pronunciation that is another word's as well, or the beginning of another, ends in #1, #2, ... so that L is
    determinizable; the last of these symbols closes the optional silence.
    """
    variants = [(word, said) for word in lexicon.words for said in lexicon.pronunciations[word]]
    same = Counter(said for _, said in variants)
    prefixes = {said[:i] for _, said in variants for i in range(1, len(said))}
    used: Counter[tuple[str, ...]] = Counter()
    spelled = []
    for word, said in variants:
        marks: tuple[str, ...] = ()
        if same[said] > 1 or said in prefixes:
            used[said] += 1
            marks = (f"#{used[said]}",)
        spelled.append((word, said + marks))
    last = max(used.values(), default=0) + 1
    symbols = Symbols(
        words=(EPSILON, *lexicon.words, BACKOFF, BEGIN, END),
        phones=(EPSILON, *phones),
        disambiguation=tuple(f"#{i}" for i in range(last + 1)),
    )
    phone, word_id = symbols.phone_ids, symbols.word_ids
    start, loop, silence, closing = range(4)
    if silence_probability is None:
        states, ends = 2, [(loop, 0.0)]
        lines = [f"{start} {loop} 0 0"]
    else:
        absent, present = -math.log(1.0 - silence_probability), -math.log(silence_probability)
        states = 4
        lines = [
            f"{start} {loop} 0 0 {absent}",
            f"{start} {silence} 0 0 {present}",
            f"{silence} {closing} {phone[lexicon.silence]} 0",
            f"{closing} {loop} {phone[f'#{last}']} 0",
        ]
        ends = [(loop, absent), (silence, present)]
    for word, spelling in spelled:
        source = loop
        for i, symbol in enumerate(spelling):
            arc = f"{phone[symbol]} {word_id[word] if i == 0 else 0}"
            if i < len(spelling) - 1:
                lines.append(f"{source} {states} {arc}")
                source, states = states, states + 1
            else:
                lines += [f"{source} {end} {arc} {cost}" for end, cost in ends]
    fst = kaldifst.compile("\n".join([*lines, f"{loop} 0", ""]), acceptor=False)
    kaldifst.add_self_loops(fst, isyms=[phone[BACKOFF]], osyms=[word_id[BACKOFF]])  # #0 passes through to G
    kaldifst.arcsort(fst, "olabel")
    return symbols, fst


def expand_states(clg: Arcs, windows: Sequence[Sequence[int]], tying: Tying) -> tuple[Arcs, list[PhoneState], int]:
    """Build H o CLG directly: every phone in context becomes its states, one label each, without loops.

    H says the first state when it reads the phone, so words and costs stay where they are, on the first arc. States
    that are followed by the same labels on the way to the same place are one: all that composition would give, and
    less for determinisation to find equal.

    Args:
        clg: arcs whose input labels are places in `windows`.
        windows: phone ids in context; (-i,) is the disambiguation symbol i, place 0 epsilon.

    Returns:
        The arcs, the meanings of their input labels 1, 2, ..., and how many labels of disambiguation symbols follow
        them.
    """
    labels, of_window, marks = _window_labels(windows, tying)
    of_mark = np.zeros(len(windows), np.int64)
    of_mark[marks] = len(labels) + 1 + np.arange(len(marks))
    ilabel, states = clg.arcs["ilabel"], len(clg.final)
    arcs = clg.arcs.copy()
    arcs["ilabel"] = np.where(of_window[ilabel, 0] > 0, of_window[ilabel, 0], of_mark[ilabel])
    sources, links = [clg.source], []
    sizes = (of_window > 0).sum(1)
    for size in np.unique(sizes[sizes > 0]).tolist():
        picked = sizes[ilabel] == size
        window = ilabel[picked]
        end = arcs["target"][picked].astype(np.int64)
        place = {size - 1: end}  # where one is after each state
        follow = transitions(size)
        for state in range(size - 2, -1, -1):
            kinds, kind = np.unique(of_window[:, state + 1 :], axis=0, return_inverse=True)
            _, first, number = np.unique(
                end * len(kinds) + kind.reshape(-1)[window], return_index=True, return_inverse=True
            )
            place[state] = states + number
            for after in (b for a, b in follow if a == state):
                link = np.zeros(len(first), ARC)
                link["ilabel"], link["target"] = of_window[window[first], after], place[after][first]
                links.append(link)
                sources.append(states + np.arange(len(first)))
            states += len(first)
        arcs["target"][picked] = place[0]
    final = np.concatenate([clg.final, np.full(states - len(clg.final), np.inf, np.float32)])
    result = Arcs(clg.start, final, np.concatenate(sources), np.concatenate([arcs, *links]))
    return result, labels, len(marks)


def _window_labels(
    windows: Sequence[Sequence[int]], tying: Tying
) -> tuple[list[PhoneState], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return one label, from 1, for each different (phone, state, pdf); for each window the labels of its states,
    (windows, W), 0 where it has no more; and which windows are disambiguation symbols."""
    is_mark = np.array([len(window) == 1 and window[0] <= 0 for window in windows])
    is_mark[0] = False
    spoken = np.flatnonzero(~is_mark[1:]) + 1
    window = np.array([windows[i] for i in spoken.tolist()], np.int64).reshape(-1, tying.context)
    phone = window[:, min(1, tying.context - 1)]
    left = window[:, 0] if tying.context > 1 else EDGE
    right = window[:, 2] if tying.context > 2 else EDGE
    pdf = tying.table[left, phone, right]  # (windows, W)
    key = (phone[:, None] * tying.width + np.arange(tying.width)) * tying.num_pdfs + pdf
    kinds, number = np.unique(key[pdf >= 0], return_inverse=True)
    of_window = np.zeros((len(windows), tying.width), np.int64)
    inner = np.zeros(pdf.shape, np.int64)
    inner[pdf >= 0] = number + 1
    of_window[spoken] = inner
    state = kinds // tying.num_pdfs
    whats = zip(state // tying.width, state % tying.width, kinds % tying.num_pdfs, strict=True)
    return [(int(p), int(s), int(d)) for p, s, d in whats], of_window, np.flatnonzero(is_mark)
