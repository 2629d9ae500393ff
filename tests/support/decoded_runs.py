"""Fake runs whose utterances were decoded, with a given number of errors in each."""

import json
from pathlib import Path

from roundelay.core.files import write_text
from roundelay.core.records import UTTERANCES_FILE
from roundelay.core.streams import stream
from support.fake_runs import Fake, write_run


def decoded(folder: Path, wrong: dict[str, int], words: int = 10, split: str = "test") -> Path:
    """Write a decoded split with `wrong` substitutions by utterance, by speakers a and b, a woman and a man."""
    lines = []
    for i, (name, errors) in enumerate(wrong.items()):
        pairs = [["YES", "NO"]] * errors + [["YES", "YES"]] * (words - errors)
        who = {"speaker": "ab"[i % 2], "gender": "fm"[i % 2], "subset": None}
        lines.append(json.dumps({"id": name, **who, "pairs": pairs, "forgiven": []}) + "\n")
    write_text(folder / "decode" / split / UTTERANCES_FILE, "".join(lines))
    return folder


def two(folder: Path, worse: int) -> list[Path]:
    """Write two runs, the second with up to `worse` errors more in each of forty utterances; return their folders."""
    rng = stream(0, "errors")
    first = {f"u{i}": int(rng.integers(0, 3)) for i in range(40)}
    second = {name: errors + int(rng.integers(0, worse + 1)) for name, errors in first.items()}
    one = decoded(write_run(folder, Fake(name="sgd", label="sgd", learners=1)), first)
    other = decoded(write_run(folder, Fake(name="ssgd", label="ssgd")), second)
    return [one, other]
