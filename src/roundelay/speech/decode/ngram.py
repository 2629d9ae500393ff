r"""n-gram language models in ARPA form: estimate, read with checks, restrict to a lexicon, write.

Estimator: interpolated absolute discounting (Ney, Essen and Kneser 1994; Chen and Goodman 1998, eq. 14). With c(h w)
the count of n-gram h w, c(h) = sum_w c(h w), t(h) the number of different words seen after h, h' the history h without
its oldest word, V the vocabulary with the sentence end, and discount D,

    P(w | h) = max(c(h w) - D, 0) / c(h) + bow(h) P(w | h'),      bow(h) = D t(h) / c(h),
    P(w)     = max(c(w) - D, 0) / c     + D t / c  *  1 / |V|.

Each line sums to one over V because what is taken off the seen words is what the lower order gives back. An ARPA file
stores P for the seen n-grams and bow for the histories, which is exactly this model: for an unseen n-gram the first
term is zero and back-off multiplies bow(h) P(w | h').
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text

BEGIN, END = "<s>", "</s>"
UNKNOWN = ("<unk>", "<UNK>")
RESERVED = (BEGIN, END, "<eps>", "#0")
MAX_ORDER = 3
NEVER = -99.0  # log10 probability that ARPA files give to <s>, which is only ever a history

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Arpa:
    """A back-off model.

    `grams[n - 1]` holds the n-grams: words -> (log10 probability, log10 back-off weight; 0 where the file has none).
    """

    grams: tuple[dict[Gram, tuple[float, float]], ...]

    @property
    def order(self) -> int:
        return len(self.grams)

    @property
    def words(self) -> list[str]:
        """The vocabulary, without sentence begin and end and unknown-word tokens."""
        return [word for (word,) in self.grams[0] if word not in (BEGIN, END, *UNKNOWN)]

    def log10_probability(self, word: str, history: Sequence[str]) -> float:
        """log10 P(word | history) by back-off; -inf for a word outside the vocabulary."""
        context = tuple(history)[max(0, len(history) - self.order + 1) :]
        weight = 0.0
        while True:
            entry = self.grams[len(context)].get((*context, word))
            if entry is not None:
                return weight + entry[0]
            if not context:
                return -math.inf
            weight += self.grams[len(context) - 1].get(context, (0.0, 0.0))[1]
            context = context[1:]

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> float:
        """Perplexity per word, sentence ends predicted as well; words outside the vocabulary are left out."""
        total, predicted = 0.0, 0
        for sentence in sentences:
            history = [BEGIN]
            for word in [*sentence, END]:
                log = self.log10_probability(word, history)
                history.append(word)
                if log > -math.inf:
                    total, predicted = total + log, predicted + 1
        return 10.0 ** (-total / predicted) if predicted else math.nan


def estimate(
    sentences: Iterable[Sequence[str]], vocabulary: Collection[str], order: int = 2, discount: float = 0.75
) -> Arpa:
    """Estimate a model from sentences by the equations at the top of this file.

    n-grams that hold a word outside the vocabulary are left out of the counts.

    Raises:
        UserError: no sentence, an order not 1 to 3, a discount outside (0, 1), a reserved word in the vocabulary.
    """
    if not 1 <= order <= MAX_ORDER:
        raise UserError(f"Language model order {order} is not one of 1 to {MAX_ORDER}. For more, give an ARPA file.")
    if not 0.0 < discount < 1.0:
        raise UserError(f"Language model discount {discount} is not between 0 and 1 (both excluded); 0.75 is usual.")
    if reserved := sorted(set(vocabulary) & {*RESERVED}):
        raise UserError(
            f"{', '.join(reserved)} cannot be words of the lexicon: language models reserve them. Remove them."
        )
    counts = _count(sentences, {*vocabulary, BEGIN, END}, order)
    if not counts[0][(END,)]:
        raise UserError("There is no sentence to estimate a language model from.")
    words = sorted({*vocabulary, END})
    total, types = sum(counts[0][(w,)] for w in words), sum(counts[0][(w,)] > 0 for w in words)
    floor = discount * types / total / len(words)
    prob: list[dict[Gram, float]] = [{(w,): max(counts[0][(w,)] - discount, 0.0) / total + floor for w in words}]
    backoff: list[dict[Gram, float]] = [{} for _ in range(order)]
    for n in range(2, order + 1):
        seen: Counter[Gram] = Counter()
        kinds: Counter[Gram] = Counter()
        for gram, count in counts[n - 1].items():
            seen[gram[:-1]] += count
            kinds[gram[:-1]] += 1
        backoff[n - 2] = {history: discount * kinds[history] / seen[history] for history in seen}
        prob.append(
            {
                gram: (count - discount) / seen[gram[:-1]] + backoff[n - 2][gram[:-1]] * prob[n - 2][gram[1:]]
                for gram, count in sorted(counts[n - 1].items())
            }
        )
    grams = tuple(
        {gram: (math.log10(p), math.log10(backoff[n].get(gram, 1.0))) for gram, p in prob[n].items()}
        for n in range(order)
    )
    grams[0][(BEGIN,)] = NEVER, math.log10(backoff[0].get((BEGIN,), 1.0))
    return Arpa(grams)


def _count(sentences: Iterable[Sequence[str]], known: Collection[str], order: int) -> list[Counter[Gram]]:
    counts: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        words = (BEGIN, *sentence, END)
        for n in range(1, order + 1):
            grams = (words[i : i + n] for i in range(len(words) - n + 1))
            counts[n - 1].update(gram for gram in grams if all(word in known for word in gram))
    return counts


def to_text(model: Arpa) -> str:
    """The ARPA file."""
    lines = ["\\data\\", *(f"ngram {n}={len(grams)}" for n, grams in enumerate(model.grams, 1))]
    for n, grams in enumerate(model.grams, 1):
        lines += ["", f"\\{n}-grams:"]
        for gram, (log, weight) in sorted(grams.items()):
            lines.append(f"{log:.6f}\t{' '.join(gram)}" + (f"\t{weight:.6f}" if weight else ""))
    return "\n".join([*lines, "", "\\end\\", ""])


def write_arpa(path: Path, model: Arpa) -> None:
    """Write the ARPA file atomically."""
    write_text(path, to_text(model))


@dataclass(frozen=True)
class Restricted:
    """A model without the words that cannot be decoded."""

    model: Arpa
    missing: tuple[str, ...]  # words of the model that the lexicon does not have, in alphabetical order
    orphans: int  # n-grams left out because their history is not an n-gram of the model (pruning tools leave some)

    def describe(self, shown: int = 10) -> str:
        """For people; empty when nothing was left out."""
        parts = []
        if self.missing:
            more = f" and {len(self.missing) - shown} more" if len(self.missing) > shown else ""
            parts.append(
                f"{len(self.missing)} words of the language model are not in the lexicon and cannot be recognised: "
                f"{', '.join(self.missing[:shown])}{more}. Add their pronunciations to have them."
            )
        if self.orphans:
            parts.append(f"{self.orphans} n-grams whose history is missing were left out.")
        return " ".join(parts)


def restrict(model: Arpa, vocabulary: Collection[str]) -> Restricted:
    """Leave out every n-gram that holds a word outside the vocabulary (their probability is lost, not shared out).

    Raises:
        UserError: no word is left.
    """
    known = {*vocabulary, BEGIN, END}
    missing = tuple(sorted(word for word in model.words if word not in known))
    grams: list[dict[Gram, tuple[float, float]]] = []
    orphans = 0
    for level in model.grams:
        kept = {gram: value for gram, value in level.items() if all(word in known for word in gram)}
        rooted = {gram: value for gram, value in kept.items() if len(gram) == 1 or gram[:-1] in grams[-1]}
        orphans += len(kept) - len(rooted)
        grams.append(rooted)
    result = Restricted(Arpa(tuple(grams)), missing, orphans)
    if not result.model.words:
        raise UserError(
            f"The language model and the lexicon share no word (language model: {', '.join(missing[:5])}...; "
            f"lexicon: {', '.join(sorted(vocabulary)[:5])}...). Do they agree on upper and lower case?"
        )
    return result


# ---------------------------------------------------------------------------------------------------------- reading


def read_arpa(path: Path) -> Arpa:
    """Read an ARPA file and check it.

    Raises:
        UserError: missing file; missing or repeated sections; wrong counts; a line that is not an n-gram; a probability
            above one; an n-gram twice or with a word that is no unigram; names file and line.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return _Reader(path, enumerate(file, 1)).read()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Give an ARPA language model, or none to estimate one.") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start}). Is it an ARPA file, and not a binary model?"
        ) from error


class _Reader:
    """One pass over the lines of an ARPA file; remembers where it is for messages."""

    def __init__(self, path: Path, lines: Iterator[tuple[int, str]]) -> None:
        self.path, self.lines, self.number = path, lines, 0

    def read(self) -> Arpa:
        self._find(lambda line: line == "\\data\\", "\\data\\")
        declared, line = self._declared()
        levels: list[dict[Gram, tuple[float, float]]] = []
        for n, count in enumerate(declared, 1):
            if line != f"\\{n}-grams:":
                raise self._error(f"expected \\{n}-grams:, found {line!r}")
            grams, line = self._section(n, len(declared), levels)
            if len(grams) != count:
                raise self._error(
                    f"\\data\\ promises {count} {n}-grams and there are {len(grams)}; the file may be cut short"
                )
            levels.append(grams)
            if missing := [word for word in (BEGIN, END) if (word,) not in levels[0]]:
                raise self._error(f"{' and '.join(missing)} not among the 1-grams")
        if line != "\\end\\":
            raise self._error(f"expected \\end\\, found {line!r}")
        return Arpa(tuple(levels))

    def _error(self, message: str) -> UserError:
        return UserError(f"{self.path}:{self.number}: {message}.")

    def _find(self, wanted: Callable[[str], bool], name: str) -> str:
        for self.number, raw in self.lines:  # noqa: B020  the position is kept for messages
            if wanted(line := raw.strip()):
                return line
        raise self._error(f"the file ends before {name}; the file may be cut short or not be an ARPA file")

    def _declared(self) -> tuple[list[int], str]:
        declared: list[int] = []
        while (line := self._find(bool, "\\end\\")).startswith("ngram"):
            match = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
            if match is None or int(match[1]) != len(declared) + 1:
                raise self._error(f"expected `ngram {len(declared) + 1}=COUNT`, found {line!r}")
            declared.append(int(match[2]))
        if not declared:
            raise self._error("\\data\\ declares no n-grams")
        return declared, line

    def _section(
        self, n: int, order: int, lower: Sequence[dict[Gram, tuple[float, float]]]
    ) -> tuple[dict[Gram, tuple[float, float]], str]:
        grams: dict[Gram, tuple[float, float]] = {}
        while not (line := self._find(bool, "\\end\\")).startswith("\\"):
            fields = line.split()
            if len(fields) not in ((n + 1, n + 2) if n < order else (n + 1,)):
                raise self._error(
                    f"expected a log10 probability, {n} words{' and maybe a weight' * (n < order)}, found {line!r}"
                )
            gram = tuple(fields[1 : n + 1])
            try:
                log, weight = float(fields[0]), float(fields[n + 1]) if len(fields) == n + 2 else 0.0
            except ValueError:
                raise self._error(f"not numbers where they should be: {line!r}") from None
            if not log <= 1e-6 or not math.isfinite(weight):  # NaN fails the comparison too
                raise self._error(f"a log10 probability must be 0 or less and a weight finite: {line!r}")
            if gram in grams:
                raise self._error(f"the {n}-gram {' '.join(gram)!r} comes twice")
            for word in gram if n > 1 else ():
                if (word,) not in lower[0]:
                    raise self._error(f"{word!r} is not among the 1-grams")
            grams[gram] = log, weight
        return grams, line
