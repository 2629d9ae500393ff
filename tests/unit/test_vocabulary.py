"""From texts to a graph: which words, how they are said, and that a graph is made once."""

import gzip
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.streams import stream
from roundelay_speech.decode.graphs import making
from roundelay_speech.decode.graphs.graph import GRAPH_FILE, GraphConfig, load_graph
from roundelay_speech.decode.graphs.hmm import TiedStates
from roundelay_speech.decode.graphs.making import GraphJob, LanguageOptions, find_or_make
from roundelay_speech.decode.lm.arpa_file import read_arpa, write_arpa
from roundelay_speech.decode.lm.vocabulary import joined, most_frequent, pronounced, read_dictionary, read_sentences
from roundelay_speech.lexicon.lexicon import Lexicon, read_lexicon
from roundelay_speech.ngrams.estimate import Estimator, estimate
from roundelay_speech.recipes.recipe import Decoding
from roundelay_speech.recognition.graph import language_options
from support.toy_speech import LEXICON, sentences, tying

TEXT = [["GO", "MARS", "GO"], ["TO", "GO"], ["TONE", "XYZ", "TO"]]


def test_clauses_are_joined() -> None:
    assert [*joined([["A"], ["B", "C"], ["D"], ["E"]], 3)] == [["A", "B", "C"], ["D", "E"]]
    assert [*joined([["A"], ["B"]], 0)] == [["A"], ["B"]]


def test_most_frequent_words_and_those_that_must_be_there() -> None:
    counts = {"B": 2, "A": 2, "C": 3, "D": 1, "<s>": 9}
    assert most_frequent(counts, 2, ["D", "A", "Z"]) == ["C", "A", "D", "Z"]


def test_first_dictionary_that_has_a_word() -> None:
    """MARS is only in the second; ODD has phones that the model does not know, XYZ none."""
    first = Lexicon({"GO": (("G", "OW"),), "ODD": (("QQ",),)})
    second = Lexicon({"GO": (("G",),), "MARS": (("M", "S"), ("QQ",))})
    words = ["GO", "ODD", "MARS", "XYZ"]
    found = pronounced(words, [first, second], ("SIL", "G", "M", "OW", "S"))
    assert found.lexicon.pronunciations == {"GO": (("G", "OW"),), "MARS": (("M", "S"),)}
    assert (found.dropped, found.guessed) == (("ODD", "XYZ"), ())
    assert "2 words of the vocabulary have no pronunciation and cannot be recognised: ODD, XYZ." in found.describe()
    guessed = pronounced(words, [first, second], ("SIL", "G", "M", "OW", "S"), lambda word: (word[0],) * 2)
    assert (guessed.dropped, guessed.guessed) == (("ODD", "XYZ"), ())  # O and X are no phones
    guessed = pronounced(words, [first, second], ("SIL", "G", "M", "OW", "S"), lambda _: ("S", "S"))
    assert (guessed.dropped, guessed.guessed) == ((), ("ODD", "XYZ"))
    with pytest.raises(UserError, match="None of the 1 words"):
        pronounced(["go"], [first], ("SIL", "G", "OW"))


def job(**options: object) -> GraphJob:
    transcripts = tuple(" ".join(words) for words in sentences(stream(0, "text"), 30))
    return GraphJob(LanguageOptions(**options), GraphConfig(), transcripts, LEXICON, TiedStates(tying(3)))  # type: ignore[arg-type]


def test_graph_of_outside_text(tmp_path: Path) -> None:
    text, dictionary = tmp_path / "text.gz", tmp_path / "dictionary.gz"
    text.write_bytes(gzip.compress("\n\n".join(" ".join(words) for words in TEXT).encode()))
    dictionary.write_bytes(gzip.compress(b"mars(2) M AA1 R S\nmars N AA1 T S # a planet\ngo G OW1\n"))
    assert [*read_sentences(text)] == TEXT
    assert read_dictionary(dictionary, LEXICON).pronunciations["GO"] == (("G", "OW"),)
    assert "go" in read_dictionary(dictionary, Lexicon({"yes": (("Y",),)}))  # the case of the corpus
    how = Estimator(3, "kneser-ney", cutoffs=(1, 1, 2))
    asked = job(estimator=how, text=(text,), vocabulary=3, dictionary=dictionary, join=4)
    folder, new = find_or_make(asked, tmp_path)
    assert new
    graph = load_graph(folder)
    # GO, TO and, third by the alphabet, MARS; the words of the transcripts; XYZ is too rare.
    assert set(graph.words) - {"<eps>", "#0", "<s>", "</s>"} == {*LEXICON.words, "MARS"}
    assert (folder / "lexicon.txt").read_text().count("MARS") == 1  # M and R are no phones of the model
    assert graph.info["dropped_words"] == 0
    assert graph.info["build_seconds"] >= 0
    assert graph.info["peak_bytes"] > 10_000_000
    model = read_arpa(folder / "lm.arpa.gz")
    assert model.order == 3
    assert model.log10_probability("MARS", ["<s>", "GO"]) > model.log10_probability("MARS", ["<s>", "STOP"])
    assert find_or_make(asked, tmp_path) == (folder, False)
    text.write_bytes(gzip.compress(b"GO GO GO"))  # the same name, another text: another graph
    assert find_or_make(asked, tmp_path)[0] != folder


def test_guesses_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that no dictionary has is said as the model says; one the model cannot say is dropped."""
    heard = SimpleNamespace(pronounce=lambda word: [SimpleNamespace(phones=("T", "OW"))] if word != "XYZ" else [])
    monkeypatch.setattr(making, "g2p_of", lambda _lexicon, _cache: heard)
    (tmp_path / "text").write_text("\n".join(" ".join(words) for words in TEXT))
    asked = job(text=(tmp_path / "text",), vocabulary=9, guess=True)
    found = making.language_lexicon(asked, tmp_path)
    assert (found.guessed, found.dropped) == (("MARS",), ("XYZ",))
    assert found.lexicon.pronunciations["MARS"] == (("T", "OW"),)


def test_default_is_the_closed_vocabulary_of_the_corpus(tmp_path: Path) -> None:
    folder, _ = find_or_make(job(), tmp_path)
    assert set(load_graph(folder).words) >= set(LEXICON.words)
    transcripts = [text.split() for text in job().transcripts]
    expected = estimate(transcripts, LEXICON.words)
    assert read_arpa(folder / "lm.arpa.gz").counts == expected.counts
    heavier, _ = find_or_make(job(transcript_weight=2), tmp_path)
    assert heavier != folder


def test_a_dictionary_that_nobody_has_spoken_is_remarked_on(tmp_path: Path) -> None:
    """A grammar of few sentences over all words of a large dictionary costs errors and time."""
    large = Lexicon({**LEXICON.pronunciations, **{f"W{i}": (("G", "OW"),) for i in range(6000)}})
    _, remark = making.language_model(job(), large)
    assert "of the 6,0" in remark
    assert "decode.vocabulary=transcripts" in remark
    (tmp_path / "text").write_text("GO TO MARS\n")
    assert making.language_model(job(text=(tmp_path / "text",)), large)[1] == ""
    assert making.language_model(job(), LEXICON)[1] == ""


def test_a_graph_is_named_by_its_contents_as_ever() -> None:
    """Graphs that earlier versions made are found again."""
    asked = GraphJob(LanguageOptions(), GraphConfig(), ("A B", "C"), LEXICON, TiedStates(tying(3)))
    assert asked.digest() == "ac20835c8084d000"


def test_words_by_name(tmp_path: Path) -> None:
    """`transcripts` are the words that were said, `dictionary` all that are known, a number those of the text too."""
    (tmp_path / "text").write_text("MARS MARS GO\n")
    said = {word for text in job().transcripts for word in text.split()} & set(LEXICON.words)
    for named, words in (("transcripts", said), ("dictionary", {*LEXICON.words}), (None, {*LEXICON.words})):
        config = Decoding(vocabulary=named, text=(tmp_path / "text",))  # type: ignore[arg-type]
        folder, _ = find_or_make(replace(job(), options=language_options(config)), tmp_path)
        assert set(read_lexicon(folder / "lexicon.txt").words) == words
    assert Decoding(vocabulary=3).words_of_text == 3


def test_given_model(tmp_path: Path) -> None:
    write_arpa(tmp_path / "lm.arpa.gz", estimate([["GO", "MARS"]], ["GO", "MARS", "TO"]))
    folder, _ = find_or_make(job(arpa=tmp_path / "lm.arpa.gz"), tmp_path)
    assert "1 words of the language model are not in the lexicon" in read_json(folder / GRAPH_FILE)["left_out"]


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path / 'none.txt'}: cannot be read"):
        find_or_make(job(text=(tmp_path / "none.txt",)), tmp_path)
    with pytest.raises(UserError, match="vocabulary is 0"):
        Decoding(vocabulary=0)
    with pytest.raises(UserError, match="must be 0 or more"):
        job(join=-1)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"GO TO " * 100)[:-20])
    with pytest.raises(UserError, match=r"cut\.gz: damaged gzip file"):
        [*read_sentences(tmp_path / "cut.gz")]
    assert replace(job(), transcripts=("GO",)).digest() != job().digest()
