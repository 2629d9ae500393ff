"""LibriSpeech and mini LibriSpeech from their published layouts."""

import gzip
import itertools
from pathlib import Path

import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.options import OPEN, PrepareOptions
from roundelay_speech.corpus.readers.base import Request
from roundelay_speech.corpus.readers.librispeech import prepare_librispeech, prepare_mini_librispeech, read_part
from roundelay_speech.corpus.words import read_vocabulary
from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.prepared import Corpus, load_corpus
from support.corpora import kaldi_corpus
from support.named_corpora import CMU_STYLE, librispeech

MINI = {"train-clean-5": [19, 26], "dev-clean-2": [84, 1001, 251]}


@pytest.fixture
def lexicon(tmp_path: Path) -> Path:
    path = tmp_path / "cmudict.dict.gz"
    path.write_bytes(gzip.compress(CMU_STYLE.encode()))
    return path


def speakers(corpus: Corpus) -> dict[str, set[str]]:
    return {split: {u.speaker for u in us} for split, us in corpus.splits.items()}


def test_mini_librispeech(tmp_path: Path, lexicon: Path) -> None:
    source = librispeech(tmp_path / "source", MINI)
    options = PrepareOptions(vocabulary="transcripts")
    prepare_mini_librispeech(Request(tmp_path / "data", source, lexicon=lexicon, options=options), Silent())
    corpus = load_corpus(tmp_path / "data")
    assert speakers(corpus) == {"train": {"19", "26"}, "dev": {"84", "1001"}, "test": {"251"}}
    first = corpus.splits["train"][0]
    assert (first.id, first.gender, first.subset) == ("19-1019-0000", "f", "train-clean-5")
    assert corpus.splits["train"][-1].gender == "m"
    assert corpus.lexicon.words == ("GO", "NO", "STAY", "YES")
    assert corpus.lexicon.pronunciations["YES"] == (("Y", "EH", "S"),)
    assert {u.id for u in corpus.utterances} == set(corpus.features().utterance_ids)


def test_chosen_parts(tmp_path: Path, lexicon: Path) -> None:
    parts = {"train-clean-100": [1], "train-other-500": [2], "dev-clean": [3], "dev-other": [4], "test-clean": [5]}
    source = librispeech(tmp_path / "source", parts, utterances=1)
    data = tmp_path / "data"
    corpus = prepare_librispeech(Request(data, source, lexicon=lexicon, options=OPEN), Silent())
    assert speakers(corpus) == {"train": {"1", "2"}, "dev": {"3"}, "dev-other": {"4"}, "test-clean": {"5"}}
    chosen = {"train": ["train-clean-100"], "dev": ["dev-clean", "dev-other"]}
    corpus = prepare_librispeech(
        Request(data, source / "LibriSpeech", lexicon=lexicon, splits=chosen, options=OPEN), Silent()
    )
    assert speakers(corpus) == {"train": {"1"}, "dev": {"3", "4"}}
    with pytest.raises(UserError, match=r"no folder train-clean-360; there are dev-clean, .*--split train=train-clean"):
        prepare_librispeech(
            Request(data, source, lexicon=lexicon, splits={"train": ["train-clean-360"]}, options=OPEN), Silent()
        )
    with pytest.raises(UserError, match="no training part"):
        prepare_librispeech(
            Request(data, source, lexicon=lexicon, splits={"dev": ["dev-clean"]}, options=OPEN), Silent()
        )


def test_the_layout_of_data_directories(tmp_path: Path, lexicon: Path) -> None:
    texts = {split: {f"{split}{i}-a": "YES NO" for i in range(2)} for split in ("train", "dev", "test")}
    source = kaldi_corpus(tmp_path / "source", texts)
    (source / "manifest.tsv").write_text("utt\tspeaker\tgender\ntrain0-a\ttrain0\tF\ndev0-a\tdev0\tM\n")
    corpus = prepare_mini_librispeech(Request(tmp_path / "data", source, lexicon=lexicon), Silent())
    assert [u.gender for u in corpus.utterances] == ["f", None, "m", None, None, None]
    assert corpus.lexicon.words == ("GO", "MORNING", "NO", "STAY", "YES")


def test_an_open_vocabulary(tmp_path: Path, lexicon: Path) -> None:
    """Words of held-out speech that are not in it are no error, and not in the lexicon; those trained on always are."""
    texts = {"train": {"a-1": "YES"}, "dev": {"b-1": "NO"}, "test": {"c-1": "GO UNHEARD"}}
    source = kaldi_corpus(tmp_path / "source", texts)
    options = PrepareOptions(vocabulary=frozenset({"MORNING", "UNSAID", "NO"}))
    prepare_mini_librispeech(Request(tmp_path / "data", source, lexicon=lexicon, options=options), Silent())
    corpus = load_corpus(tmp_path / "data")
    assert corpus.lexicon.words == ("MORNING", "NO", "YES")
    assert [u.id for u in corpus.alignable("test")] == []
    assert [u.text for u in corpus.splits["test"]] == ["GO UNHEARD"]
    with pytest.raises(UserError, match="UNHEARD"):
        prepare_mini_librispeech(Request(tmp_path / "data", source, lexicon=lexicon), Silent())
    texts["train"]["a-1"] = "YES UNHEARD"
    (source / "train" / "text").write_text("a-1 YES UNHEARD\n")
    with pytest.raises(UserError, match="UNHEARD"):
        prepare_mini_librispeech(Request(tmp_path / "data", source, lexicon=lexicon, options=options), Silent())


def test_guesses(tmp_path: Path) -> None:
    """Of what is trained on and of the vocabulary; of held-out speech only where the vocabulary is closed."""
    lexicon = tmp_path / "regular.dict"
    words = ["".join(letters) for letters in itertools.product("bdgk", "aeo", "bdgk", "aeo", "bdgk")]
    lexicon.write_text("".join(f"{word} {' '.join(word.upper())}\n" for word in words))
    texts = {"train": {"a-1": "BADABE"}, "dev": {"b-1": "DEGOB"}, "test": {"c-1": "GOBADE"}}
    source = kaldi_corpus(tmp_path / "source", texts)
    for vocabulary, guessed in (
        (frozenset({"DOGEBA", "BEGOB"}), {"BADABE", "DOGEBA"}),
        ("open", {"BADABE"}),
        ("transcripts", {"BADABE", "GOBADE"}),
    ):
        options = PrepareOptions(vocabulary=vocabulary, on_missing_words="guess")  # type: ignore[arg-type]
        corpus = prepare_mini_librispeech(
            Request(tmp_path / "data", source, lexicon=lexicon, options=options), Silent()
        )
        assert corpus.guessed == len(guessed)
        assert guessed <= set(corpus.lexicon.words)
        assert ("GOBADE" in corpus.lexicon) == ("GOBADE" in guessed)
        assert corpus.lexicon.pronunciations["BADABE"] == (tuple("BADABE"),)
        # The dictionary has DEGOB: the recogniser knows it only if the vocabulary has it, the aligner knows it anyhow.
        assert ("DEGOB" in corpus.lexicon) == (not isinstance(vocabulary, frozenset))
        assert load_corpus(tmp_path / "data").alignment_lexicon.pronunciations["DEGOB"] == (tuple("DEGOB"),)
        assert not corpus.left_out
        assert corpus.alignable("dev") == corpus.splits["dev"]


def test_the_most_frequent_words(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"b a c\na b\nd a\n"))
    assert read_vocabulary(path) == {"a", "b", "c", "d"}
    assert read_vocabulary(path, 3) == {"a", "b", "c"}
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=r"text\.gz: a damaged gzip file"):
        read_vocabulary(path)
    with pytest.raises(UserError, match="--vocabulary-size -1"):
        read_vocabulary(path, -1)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="no words"):
        read_vocabulary(tmp_path / "empty")
    with pytest.raises(UserError, match="no such file; a pronunciation lexicon"):
        read_lexicon(tmp_path / "none")


def test_faults_are_listed_together(tmp_path: Path) -> None:
    root = librispeech(tmp_path, MINI, utterances=3) / "LibriSpeech"
    file = root / "train-clean-5" / "19" / "1019" / "19-1019.trans.txt"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[0], "19-1019-0001", "20-1019-0002 YES", *lines[2:]]))
    with pytest.raises(UserError, match="3 faults in the transcripts") as error:
        read_part(root, "train-clean-5", "error", Silent())
    for number, what in ((2, "already on line 1"), (3, "has nothing beside it"), (4, "not an utterance of 19-1019")):
        assert f"{file}:{number}: " in str(error.value)
        assert what in str(error.value)


def test_audio_without_words_and_words_without_audio(tmp_path: Path) -> None:
    root = librispeech(tmp_path, MINI, utterances=3) / "LibriSpeech"
    chapter = root / "train-clean-5" / "19" / "1019"
    (chapter / "19-1019-0001.flac").unlink()
    soundfile.write(chapter / "19-1019-0009.flac", [0.0] * 100, 16000)
    with pytest.raises(UserError, match=r"2 of 7 utterances cannot be used") as error:
        read_part(root, "train-clean-5", "error", Silent())
    assert "19-1019-0009: " in str(error.value)
    assert "19-1019-0001.flac: no such file" in str(error.value)
    utterances, left_out = read_part(root, "train-clean-5", "skip", Silent())
    assert len(utterances) == 5
    assert {one.id for one in left_out} == {"19-1019-0001", "19-1019-0009"}


def test_without_a_table_of_readers(tmp_path: Path) -> None:
    root = librispeech(tmp_path, MINI, utterances=1, speakers=False) / "LibriSpeech"
    assert {u.gender for u in read_part(root, "train-clean-5", "error", Silent())[0]} == {None}


def test_another_folder(tmp_path: Path, lexicon: Path) -> None:
    with pytest.raises(UserError, match=r"none of train-clean-5, dev-clean-2 is here.*--download"):
        prepare_mini_librispeech(Request(tmp_path / "data", tmp_path, lexicon=lexicon), Silent())
    with pytest.raises(UserError, match="no such folder"):
        prepare_librispeech(Request(tmp_path / "data", tmp_path / "none", lexicon=lexicon, options=OPEN), Silent())
