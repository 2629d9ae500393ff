"""Memory and time that a large language model takes to be read, and to answer.

    python benchmarks/rescoring.py --words cmudict.dict.gz --bigrams 10e6 --trigrams 15e6 [--vocabulary 100000]
        [--arpa FILE] [--queries 300000]

writes an ARPA file of random n-grams (history and shorter form of each are listed, as in an estimated model), loads it
in a process of its own, and asks for words that follow listed histories and for words that do not. Nothing is said of
accuracy: the n-grams mean nothing. A file that is there is taken as it is: a real one may be given. Alone on the
machine, or the seconds mean nothing.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from roundelay.core.streams import stream
from roundelay_speech.decode.graphs.making import peak_bytes
from roundelay_speech.decode.lm.arpa_file import open_text
from roundelay_speech.decode.lm.given import expected, load_model
from roundelay_speech.decode.lm.size import declared_counts
from roundelay_speech.lexicon.lexicon import read_lexicon

BLOCK = 200_000  # n-grams written at once


def write_random(path: Path, words: list[str], bigrams: int, trigrams: int) -> None:
    rng, size = stream(0, "n-grams"), len(words)
    first = np.arange(size, dtype=np.int64)
    pairs = np.unique(rng.zipf(1.3, bigrams) % size * size + rng.integers(size, size=bigrams))
    pairs = np.union1d(pairs, first * size + (first + 1) % size)  # every word has a successor
    begins = np.searchsorted(pairs, np.arange(size + 1) * size)
    history = rng.integers(len(pairs), size=trigrams)
    middle = pairs[history] % size
    following = pairs[begins[middle] + (rng.random(trigrams) * (begins[middle + 1] - begins[middle])).astype(np.int64)]
    triples = np.unique(history * size + following % size)
    numbers = [f"{-x:.6f}" for x in rng.uniform(0.01, 6.0, 4096)]
    with open(path, "w", encoding="utf-8") as file:
        counts = (size + 3, len(pairs), len(triples))
        file.write("\\data\\\n" + "".join(f"ngram {n}={count}\n" for n, count in enumerate(counts, 1)))
        file.write("\n\\1-grams:\n-99\t<s>\t-0.5\n-1.5\t</s>\n-3.0\t<unk>\n")
        file.writelines(f"-4.5\t{word}\t-0.3\n" for word in words)
        file.write("\n\\2-grams:\n")
        _write_block(file, words, numbers, [pairs // size, pairs % size], "\t-0.2")
        file.write("\n\\3-grams:\n")
        where = triples // size
        _write_block(file, words, numbers, [pairs[where] // size, pairs[where] % size, triples % size], "")
        file.write("\n\\end\\\n")


def _write_block(file: IO[str], words: list[str], numbers: list[str], ids: list[np.ndarray], weight: str) -> None:
    for at in range(0, len(ids[0]), BLOCK):
        columns = [[words[i] for i in column[at : at + BLOCK].tolist()] for column in ids]
        grams = (" ".join(gram) for gram in zip(*columns, strict=True))
        file.write("".join(f"{numbers[(at + i) & 4095]}\t{gram}{weight}\n" for i, gram in enumerate(grams)))


def answer(path: Path, queries: int) -> None:
    """Load and ask, and print what that took; in a process of its own."""
    print(expected(path), flush=True)
    begun, before = time.process_time(), peak_bytes()
    scorer = load_model(path)
    ngrams, loaded, took = sum(declared_counts(path)), peak_bytes(), time.process_time() - begun
    print(f"{'n-grams':32} {ngrams:,}")
    print(f"{'seconds of a core to load':32} {took:.1f} ({1e6 * took / ngrams:.2f} us an n-gram)")
    print(f"{'memory':32} {loaded / 1e9:.2f} GB ({(loaded - before) / ngrams:.1f} bytes an n-gram)")
    with open_text(path, "") as lines:
        grams = (line.split("\t")[1].split() for line in lines if line.count("\t") and len(line.split()) >= 4)
        asked = [gram[-2:] for gram in islice(grams, 0, 20 * queries, 20)]
    begun = time.process_time()
    for a, b in asked:
        _, state = scorer.word(scorer.start, a)
        scorer.word(state, b)
    print(f"{'microseconds a word':32} {1e6 * (time.process_time() - begun) / max(1, 2 * len(asked)):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=Path, help="a dictionary, for the words")
    parser.add_argument("--vocabulary", type=int, default=100_000)
    parser.add_argument("--bigrams", type=float, default=10e6)
    parser.add_argument("--trigrams", type=float, default=15e6)
    parser.add_argument("--arpa", type=Path, help="where to keep the file, or one that is there")
    parser.add_argument("--queries", type=int, default=300_000)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(options.arpa, options.queries)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.arpa or Path(folder) / "random.arpa"
        if not path.exists():
            lexicon = read_lexicon(options.words, strip_stress=True, case="upper")
            write_random(path, [*lexicon.words][: options.vocabulary], int(options.bigrams), int(options.trigrams))
        print(f"{'file':32} {path.stat().st_size / 1e9:.2f} GB", flush=True)
        command = [sys.executable, __file__, "--answer", "--arpa", str(path), "--queries", str(options.queries)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
