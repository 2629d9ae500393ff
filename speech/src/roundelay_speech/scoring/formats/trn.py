"""TRN files: `words (speaker-utterance)`, a line per utterance, as sclite reads them (`-i spu_id`)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay_speech.scoring.alignment.counts import Texts
from roundelay_speech.scoring.formats.io import content_lines

_LINE = re.compile(r"(.*)\(([^()\s]+)\)\s*")


def trn_name(utterance: str, speaker: str) -> str:
    """Return the name of an utterance in a trn file: its id, with the speaker in front unless the id begins
    with that."""
    known = not speaker or utterance.startswith((f"{speaker}-", f"{speaker}_"))
    return utterance if known else f"{speaker}-{utterance}"


def speaker_of(name: str) -> str:
    """Return the speaker in a name: the part before the first `-` or `_`; the whole name if there is none."""
    return re.split("[-_]", name, maxsplit=1)[0] or name


def write_trn(path: Path, texts: Texts, speakers: Mapping[str, str] | None = None) -> None:
    """Write the words of all utterances as a trn file.

    Args:
        speakers: speaker by utterance id. The speaker is put in front unless the id begins with it already.

    Raises:
        UserError: a line would be read as something else, because of a blank or bracket in a name, a blank in a word,
            or `;;` in front; names the utterance.
    """
    lines = [trn_line(str(path), name, words, (speakers or {}).get(name, "")) for name, words in texts.items()]
    write_text(path, "".join(lines))


def trn_line(where: str, utterance: str, words: Sequence[str], speaker: str = "") -> str:
    """Return the line of an utterance; `where` begins messages.

    Raises:
        UserError: the line would be read as something else.
    """
    name = trn_name(utterance, speaker)
    line = " ".join([*words, f"({name})"])
    match = _LINE.fullmatch(line)
    if match is None or line.startswith(";;") or (match[1].split(), match[2]) != ([*words], name):
        raise UserError(
            f"{where}: {utterance}: {line!r} would be read as something else. Rename the word or utterance."
        )
    return f"{line}\n"


def read_trn(path: Path) -> dict[str, list[str]]:
    """Read a trn file: words by the name in the brackets.

    Raises:
        UserError: the file is missing, a line has no `(name)` at its end, or a name occurs twice; names file and line.
    """
    texts: dict[str, list[str]] = {}
    for number, line in content_lines(path, "`roundelay decode` writes ref.trn and hyp.trn"):
        match = _LINE.fullmatch(line)
        if match is None:
            raise UserError(f"{path}:{number}: expected `words (speaker-utterance)`, found {line!r}.")
        if match[2] in texts:
            raise UserError(f"{path}:{number}: utterance {match[2]} comes twice. Keep one of its lines.")
        texts[match[2]] = match[1].split()
    return texts
