"""Time and memory that a decoding graph of a large vocabulary takes to make.

    python benchmarks/graph.py --text books.txt.gz --lexicon cmudict.dict.gz [--transcripts text] [--vocabulary 20000]
        [--order 3] [--cutoffs 1 1 2] [--prune 1e-8] [--join 30] [--context 3] [--out FOLDER]

The acoustic model is only a table of tied states here, made up: neighbours in classes by their place in the alphabet,
four to the left and two to the right, so that 39 phones and silence have 960 states. A tree from real speech gives a
graph of about the same size. `--transcripts` is a Kaldi `text` file. Alone on the machine, or the seconds mean nothing.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from roundelay.core.files import read_json
from roundelay_speech.decode.graphs.graph import GRAPH_FILE, GraphConfig
from roundelay_speech.decode.graphs.making import GraphJob, LanguageOptions, find_or_make
from roundelay_speech.hmm.topology import STATES, Tying
from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.ngrams.estimate import Estimator

CLASSES = {1: (1, 1), 2: (4, 1), 3: (4, 2)}  # by context: of left and of right neighbours


def made_up_tying(phones: tuple[str, ...], context: int) -> Tying:
    size = len(phones) + 1
    lefts, rights = CLASSES[context]
    left, phone, right, state = np.meshgrid(*[np.arange(size)] * 3, np.arange(STATES), indexing="ij")
    table = (((phone - 1) * lefts + left * lefts // size) * rights + right * rights // size) * STATES + state
    table[:, 0] = -1
    return Tying(phones, context, (size - 1) * lefts * rights * STATES, table.astype(np.int32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--lexicon", type=Path, required=True)
    parser.add_argument("--transcripts", type=Path)
    parser.add_argument("--vocabulary", type=int, default=20_000)
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--cutoffs", type=int, nargs="+", default=[1, 1, 2])
    parser.add_argument("--prune", type=float, default=0.0)
    parser.add_argument("--join", type=int, default=30)
    parser.add_argument("--context", type=int, choices=[1, 2, 3], default=3)
    parser.add_argument("--out", type=Path, help="keep the graph under this folder")
    options = parser.parse_args()
    dictionary = read_lexicon(options.lexicon, strip_stress=True, case="upper")
    lines = options.transcripts.read_text(encoding="utf-8").splitlines() if options.transcripts else []
    language = LanguageOptions(
        Estimator(options.order, "kneser-ney", cutoffs=tuple(options.cutoffs), prune=options.prune),
        text=tuple(options.text),
        join=options.join,
        vocabulary=options.vocabulary,
    )
    job = GraphJob(
        language,
        GraphConfig(),
        tuple(line.partition(" ")[2] for line in lines),
        dictionary,
        made_up_tying(dictionary.phones, options.context),
    )
    with tempfile.TemporaryDirectory() as folder:
        made, _ = find_or_make(job, options.out or Path(folder))
        info = read_json(made / GRAPH_FILE)
    shown = ("words", "dropped_words", "lm_ngrams", "num_pdfs", "states", "arcs", "fst_bytes")
    for name in (*shown, "language_model_seconds", "build_seconds", "peak_bytes"):
        print(f"{name:24} {info[name]}")


if __name__ == "__main__":
    main()
