"""A text for language models, made of books: words as LibriSpeech writes them, and no book of dev or test."""

import gzip
import json
from pathlib import Path

from support.processes import run_python

SCRIPT = Path(__file__).parents[2] / "recipes" / "mini_librispeech" / "books.py"
BOOK = """# CHAPTER I

Mr. Brown\u2019s sister\u2014Mrs. Bront\u00eb\u2014said: \u201cDon\u2019t go to-day! 'Tis late.\u201d
In 1842 it rained. _Never_ mind the cat, for it is only a very small animal
"""


def text_of(folder: Path, *options: str) -> tuple[list[str], str]:
    """Lines of the text that the script makes of the books in a folder, and what it says."""
    corpus, out = folder / "data", folder / "text.gz"
    corpus.mkdir(exist_ok=True)
    read = "SHE READ THIS OLD STORY ALOUD TO US EVERY EVENING"
    for split, text in {"train": "ALL THAT IS SAID HERE MAY BE IN A BOOK", "test": read}.items():
        (corpus / f"{split}.jsonl").write_text(json.dumps({"id": "u", "text": text}) + "\n")
    done = run_python(str(SCRIPT), str(folder / "books"), "--unlike", str(corpus), "--out", str(out), *options)
    return gzip.decompress(out.read_bytes()).decode().splitlines(), done.stderr


def test_sentences_are_written_as_transcripts_are(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.md").write_text(BOOK)
    (tmp_path / "books" / "read.txt").write_text("Then she read this old story aloud to us every evening, and slept.")
    (tmp_path / "books" / "train.txt").write_text("All that is said here may be in a book. It is no secret.")
    lines, said = text_of(tmp_path)
    assert lines == [
        "MISTER BROWN'S SISTER MISSUS BRONTE SAID",
        "DON'T GO TO DAY",
        "'TIS LATE",
        "NEVER MIND THE CAT FOR IT IS ONLY A VERY SMALL ANIMAL",
        "ALL THAT IS SAID HERE MAY BE IN A BOOK",
        "IT IS NO SECRET",
    ]
    assert "read.txt: left out, 3 rows of words in common with dev or test" in said
    assert "2 books" in said
    assert text_of(tmp_path, "--words", "7")[0] == lines[:2]


def test_a_book_counts_once(tmp_path: Path) -> None:
    words = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(600)]
    long = ". ".join(" ".join(words[i : i + 10 + i % 7]) for i in range(0, 580, 20))
    for folder in ("a", "b"):
        (tmp_path / "books" / folder).mkdir(parents=True)
        (tmp_path / "books" / folder / "book.txt").write_text(f"{long}.")
    lines, said = text_of(tmp_path)
    assert len(lines) == 29
    assert said.count("had before") == 1
