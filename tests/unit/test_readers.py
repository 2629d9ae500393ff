"""Every corpus that is known by name says of itself what the command needs."""

from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.named import prepare_named
from roundelay_speech.corpus.readers import READERS
from roundelay_speech.corpus.readers.base import Reader, Request


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_reader_is_consistent(reader: Reader) -> None:
    assert reader.about.endswith(".")
    assert "--source" in reader.takes or not reader.takes, "options are for corpora that are read"
    assert not reader.needs_lexicon or "--lexicon" in reader.takes
    assert reader.free is None or "--source" in reader.takes, "a download goes into the source"
    if reader.free is not None and reader.needs_lexicon:
        assert reader.wanted().lexicon is not None, "a download brings all that is needed"


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if "--source" in reader.takes])
def test_a_folder_without_the_corpus_is_refused(name: str, tmp_path: Path) -> None:
    """With the folder in the message, and nothing written."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "lexicon").write_text("GO G OW\n")
    lexicon = tmp_path / "lexicon" if READERS[name].needs_lexicon else None
    with pytest.raises(UserError, match="empty"):
        prepare_named(name, Request(tmp_path / "data", tmp_path / "empty", lexicon=lexicon), Silent())
    assert not (tmp_path / "data").exists()
