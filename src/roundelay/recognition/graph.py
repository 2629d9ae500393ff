"""The decoding graph of a recipe, and whatever else a search of it is given.

ALIGNMENT/graphs/   decoding graphs, shared by all runs that use the same lexicon, tied states and language model
"""

from pathlib import Path

from roundelay.core.files import read_json
from roundelay.core.progress import Progress
from roundelay.recipes.recipe import Decoding, Recipe
from roundelay.recognition.loglikelihoods import FRAME_SECONDS
from roundelay.speech.decode.confidence import Pronouncing
from roundelay.speech.decode.graphs.base import Columns
from roundelay.speech.decode.graphs.graph import GRAPH_FILE, GraphConfig
from roundelay.speech.decode.graphs.making import LEXICON_FILE, GraphJob, LanguageOptions, find_or_make
from roundelay.speech.decode.lm.estimate import Estimator
from roundelay.speech.decode.lm.given import expected, load_model
from roundelay.speech.decode.rescore import Rescorer, rescorer_of
from roundelay.speech.hmm.topology import Tying
from roundelay.speech.lexicon.lexicon import read_lexicon
from roundelay.speech.prepared import Corpus

GRAPHS = "graphs"


def decoding_graph(recipe: Recipe, corpus: Corpus, columns: Columns, progress: Progress, said: str) -> Path:
    """The folder of the decoding graph, built unless it is there; `said` is told with it."""
    config = recipe.decode
    transcripts = tuple(corpus.transcripts("train"))
    # The cost of words is put on when the graph is loaded: one graph serves all of them.
    job = GraphJob(
        language_options(config), GraphConfig(config.silence_probability), transcripts, corpus.lexicon, columns
    )

    def say(large: str) -> None:
        progress.advance(0, f"of {large}")
        progress.finish()  # what it takes is seen before it is done
        progress.start("building the decoding graph")

    progress.start("building the decoding graph")
    folder, new = find_or_make(job, recipe.alignment / GRAPHS, say)
    info = read_json(folder / GRAPH_FILE)
    note = (
        f"{info['words']:,} words, {info['states']:,} states, {info['arcs']:,} arcs, {info['build_seconds']:.1f} s ("
        f"{info['language_model_seconds']:.1f} s for the language model), {info['peak_bytes'] / 1e9:.2f} GB. "
    )
    progress.advance(0, said + (note if new else "") + info["left_out"])
    progress.finish()
    return folder


def language_options(config: Decoding, *, guess: bool | None = None) -> LanguageOptions:
    """Sources of words and language model that a section decode names; `guess` in the place of its own."""
    return LanguageOptions(
        Estimator(config.order, config.method, config.discount, config.cutoffs, config.prune),
        config.arpa,
        config.text,
        config.join,
        config.transcript_weight,
        config.vocabulary,
        config.lexicon,
        config.guess if guess is None else guess,
    )


def rescorer(graph: Path, model: Path | None, progress: Progress) -> Rescorer | None:
    """The rescorer of the graph's lattices with the model in a file, if there is one; says first what reading takes."""
    if model is None:
        return None
    progress.start(f"rescoring with {expected(model)}")
    progress.finish()  # what it takes is seen before it is done
    progress.start(f"reading {model.name}")
    found = rescorer_of(graph, load_model(model))
    if lacking := found.unknown:
        more = f" and {len(lacking) - 10} more" if len(lacking) > 10 else ""
        said = ", ".join(lacking[:10])
        progress.advance(0, f"{len(lacking)} words are not in {model.name} and cannot be recognised: {said}{more}.")
    progress.finish()
    return found


def pronouncing(graph: Path, tying: Tying, config: Decoding) -> Pronouncing:
    lexicon = read_lexicon(graph / LEXICON_FILE, tying.phones[0])
    return Pronouncing(lexicon, tying, config.silence_probability, FRAME_SECONDS)
