"""The decoding graph HCLG: states of hidden Markov models in, words out (Mohri, Pereira and Riley 2002; Kaldi).

    G  words by the language model (kaldilm, back-off on #0)
    L  phones to words: all pronunciations, optional silence at the start and after every word, disambiguation symbols
    C  phones in context to phones (kaldifst.compose_context)
    H  states of hidden Markov models to phones in context

    HCLG = self-loops(minimize(determinize(H o minimize(determinize(C o L o G)))))

Input labels of H are one per different (phone, state, pdf), so that determinisation never takes two states for one
because they share a pdf; in the finished graph label = pdf + 1, the column of the log-likelihoods plus one.
"""

import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kaldifst
import kaldilm
import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json, write_json, write_text
from roundelay.speech.decode.fst import (
    Fst,
    add_self_loops,
    file_bytes,
    from_arrays,
    map_input,
    to_arrays,
    write_arrays,
)
from roundelay.speech.decode.ngram import BEGIN, END, Arpa, restrict, to_text
from roundelay.speech.hmm.topology import PhoneState, Tying, transitions
from roundelay.speech.lexicon import Lexicon

EPSILON, BACKOFF = "<eps>", "#0"
FST_FILE, WORDS_FILE, PHONES_FILE, GRAPH_FILE = "HCLG.fst", "words.txt", "phones.txt", "graph.json"
VERSION = 1


@dataclass(frozen=True)
class GraphConfig:
    """What a graph is made of besides lexicon, language model and tying.

    Attributes:
        silence_probability: of a silence at the start and after each word.
        word_cost: added for every word, in nats; above 0 it trades insertions for deletions.
    """

    silence_probability: float = 0.5
    word_cost: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.silence_probability < 1.0:
            raise UserError(f"silence_probability {self.silence_probability} is not between 0 and 1 (both excluded).")
        if not math.isfinite(self.word_cost):
            raise UserError(f"word_cost {self.word_cost} is not a number; 0 to 2 is usual.")


@dataclass(frozen=True, eq=False)
class Graph:
    """A decoding graph in memory.

    Attributes:
        fst: kaldifst.StdConstFst; input labels are pdf + 1, output labels word ids.
        words: symbols by word id (id 0 is epsilon).
        num_pdfs: columns that log-likelihoods must have.
        info: what graph.json holds.
    """

    fst: Fst
    words: tuple[str, ...]
    num_pdfs: int
    info: Mapping[str, Any]


def build_graph(lexicon: Lexicon, model: Arpa, tying: Tying, config: GraphConfig | None = None) -> Graph:
    """Compile lexicon, language model and tied states into one graph.

    Words of the language model that the lexicon lacks are left out and reported: `info["left_out"]` is a sentence for
    the user, `info["missing_words"]` the list (empty when all is well).

    Raises:
        UserError: lexicon and language model share no word; phones of lexicon and tying differ.
    """
    config = config or GraphConfig()
    lexicon = lexicon.in_phones(tying.phones)
    if lexicon.phones != tying.phones:
        differ = sorted(set(lexicon.phones) ^ set(tying.phones))
        raise UserError(
            f"The lexicon and the alignment do not have the same phones ({', '.join(differ[:10]) or 'another order'}). "
            "Align again with this lexicon, or decode with the lexicon that the alignment was made with."
        )
    restricted = restrict(model, lexicon.words)
    symbols, lexicon_fst = lexicon_transducer(lexicon, config)
    grammar = grammar_transducer(restricted.model, symbols)
    lg = kaldifst.compose(lexicon_fst, grammar)
    _optimize(lg)
    kaldifst.arcsort(lg, "ilabel")
    ids = symbols.phone_ids
    context = tying.context
    clg, windows = kaldifst.compose_context([ids[d] for d in symbols.disambiguation], context, context // 2, lg)
    kaldifst.arcsort(clg, "ilabel")
    h, labels, auxiliary = hmm_transducer(windows, tying)
    hclg = kaldifst.compose(h, clg)
    kaldifst.determinize_star(hclg, use_log=True)
    keep = np.arange(len(labels) + 1 + auxiliary)
    keep[len(labels) + 1 :] = 0
    hclg = kaldifst.StdVectorFst(from_arrays(map_input(to_arrays(hclg), keep)))
    kaldifst.minimize_encoded(hclg)
    fst = map_input(add_self_loops(to_arrays(hclg)), np.array([0, *(pdf + 1 for _, _, pdf in labels)]))
    info = {
        "version": VERSION,
        "num_pdfs": tying.num_pdfs,
        "context": context,
        "phones": list(lexicon.phones),
        "symbols": len(symbols.words),
        "words": len(lexicon.words),
        "lm_order": restricted.model.order,
        "silence_probability": config.silence_probability,
        "word_cost": config.word_cost,
        "missing_words": list(restricted.missing),
        "left_out": restricted.describe(),
        "states": len(fst.final),
        "arcs": len(fst.arcs),
        "fst_bytes": file_bytes(fst),
    }
    return Graph(from_arrays(fst), symbols.words, tying.num_pdfs, info)


def save_graph(graph: Graph, folder: Path) -> None:
    """Write `HCLG.fst`, `words.txt`, `phones.txt` and, last, `graph.json`."""
    (folder / GRAPH_FILE).unlink(missing_ok=True)  # a mixture of two graphs must not look whole
    with atomic_write(folder / FST_FILE) as file:
        write_arrays(file, to_arrays(graph.fst))
    write_text(folder / WORDS_FILE, _symbols(graph.words))
    write_text(folder / PHONES_FILE, _symbols([EPSILON, *graph.info["phones"]]))
    write_json(folder / GRAPH_FILE, dict(graph.info))


def load_graph(folder: Path) -> Graph:
    """Read what `save_graph` wrote.

    Raises:
        UserError: the folder holds no graph, or its files do not belong together.
    """
    if not (folder / GRAPH_FILE).is_file():
        raise UserError(f"{folder}: no decoding graph here (no {GRAPH_FILE}). `roundelay decode` builds it.")
    info = read_json(folder / GRAPH_FILE)
    try:
        if info["version"] != VERSION:
            raise UserError(
                f"{folder}: a graph of another version of Roundelay. Delete the folder to have it built again."
            )
        lines = (folder / WORDS_FILE).read_text(encoding="utf-8").splitlines()
        words = tuple(line.rsplit(" ", 1)[0] for line in lines)
        whole = (folder / FST_FILE).stat().st_size == info["fst_bytes"] and len(words) == info["symbols"]
        num_pdfs = int(info["num_pdfs"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{folder}: broken graph ({error}). Delete the folder to have it built again.") from error
    if not whole:
        raise UserError(f"{folder}: its files do not belong together. Delete the folder to have the graph built again.")
    return Graph(kaldifst.StdConstFst.read(str(folder / FST_FILE)), words, num_pdfs, info)


# ----------------------------------------------------------------------------------------------------- construction


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


def lexicon_transducer(lexicon: Lexicon, config: GraphConfig) -> tuple[Symbols, Fst]:
    """L: phones to words. Costs: silence or its absence at the start and after each word, and `word_cost` per word.

    A pronunciation that is another word's as well, or the beginning of another, ends in #1, #2, ... so that L is
    determinizable; the last of these symbols closes the optional silence.
    """
    variants = [(word, phones) for word in lexicon.words for phones in lexicon.pronunciations[word]]
    same = Counter(phones for _, phones in variants)
    prefixes = {phones[:i] for _, phones in variants for i in range(1, len(phones))}
    used: Counter[tuple[str, ...]] = Counter()
    spelled = []
    for word, phones in variants:
        marks: tuple[str, ...] = ()
        if same[phones] > 1 or phones in prefixes:
            used[phones] += 1
            marks = (f"#{used[phones]}",)
        spelled.append((word, phones + marks))
    last = max(used.values(), default=0) + 1
    symbols = Symbols(
        words=(EPSILON, *lexicon.words, BACKOFF, BEGIN, END),
        phones=(EPSILON, *lexicon.phones),
        disambiguation=tuple(f"#{i}" for i in range(last + 1)),
    )
    phone, word_id = symbols.phone_ids, symbols.word_ids
    absent, present = -math.log(1.0 - config.silence_probability), -math.log(config.silence_probability)
    start, loop, silence, closing = range(4)
    lines = [
        f"{start} {loop} 0 0 {absent}",
        f"{start} {silence} 0 0 {present}",
        f"{silence} {closing} {phone[lexicon.silence]} 0",
        f"{closing} {loop} {phone[f'#{last}']} 0",
    ]
    states = 4
    for word, phones in spelled:
        source = loop
        for i, symbol in enumerate(phones):
            arc = f"{phone[symbol]} {word_id[word] if i == 0 else 0}"
            cost = config.word_cost if i == 0 else 0.0
            if i < len(phones) - 1:
                lines.append(f"{source} {states} {arc} {cost}")
                source, states = states, states + 1
            else:
                lines += [f"{source} {loop} {arc} {cost + absent}", f"{source} {silence} {arc} {cost + present}"]
    fst = kaldifst.compile("\n".join([*lines, f"{loop} 0", ""]), acceptor=False)
    kaldifst.add_self_loops(fst, isyms=[phone[BACKOFF]], osyms=[word_id[BACKOFF]])  # #0 passes through to G
    kaldifst.arcsort(fst, "olabel")
    return symbols, fst


def grammar_transducer(model: Arpa, symbols: Symbols) -> Fst:
    """G: words to words with the costs of the language model; #0 is read on the way to a shorter history."""
    with tempfile.TemporaryDirectory(prefix="roundelay-") as folder:
        words, arpa = os.path.join(folder, WORDS_FILE), os.path.join(folder, "G.arpa")
        Path(words).write_text(_symbols(symbols.words), encoding="utf-8")
        Path(arpa).write_text(to_text(model), encoding="utf-8")
        with quiet():
            text = kaldilm.arpa2fst(arpa, disambig_symbol=BACKOFF, read_symbol_table=words)
    fst = kaldifst.compile(text, acceptor=False)
    kaldifst.arcsort(fst, "ilabel")
    return fst


def hmm_transducer(windows: Sequence[Sequence[int]], tying: Tying) -> tuple[Fst, list[PhoneState], int]:
    """H without self-loops: the labels of its states in, one phone in context out.

    Args:
        windows: phone ids in context by output label of C; (-i,) is the disambiguation symbol i, place 0 epsilon.

    Returns:
        H, what its input labels 1, 2, ... are, and how many labels of disambiguation symbols follow them.
    """
    labels: dict[PhoneState, int] = {}
    hub, states = 0, 1
    lines, marks = [], []
    for number, window in enumerate(windows):
        if number == 0:
            continue
        if len(window) == 1 and window[0] <= 0:
            marks.append(number)
            continue
        phone = window[min(1, tying.context - 1)]
        size = tying.states(phone)
        label = [
            labels.setdefault((phone, state, tying.of_window(window, state)), len(labels) + 1) for state in range(size)
        ]
        after = [*range(states, states + size - 1), hub]  # where one is after each state
        states += size - 1
        lines.append((hub, f"{hub} {after[0]} {label[0]} {number}"))
        lines += [(after[a], f"{after[a]} {after[b]} {label[b]} 0") for a, b in transitions(size)]
    lines += [(hub, f"{hub} {hub} {len(labels) + 1 + i} {number}") for i, number in enumerate(marks)]
    lines.sort(key=lambda line: line[0] != hub)  # the first line names the start state
    fst = kaldifst.compile("\n".join([*(line for _, line in lines), f"{hub} 0", ""]), acceptor=False)
    kaldifst.arcsort(fst, "olabel")
    return fst, list(labels), len(marks)


def _optimize(fst: Fst) -> None:
    kaldifst.determinize_star(fst, use_log=True)
    kaldifst.minimize_encoded(fst)


def _symbols(names: Sequence[str]) -> str:
    return "".join(f"{name} {i}\n" for i, name in enumerate(names))


@contextmanager
def quiet() -> Iterator[None]:
    """Send what libraries print to standard error to nowhere (kaldilm narrates every section of an ARPA file)."""
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
