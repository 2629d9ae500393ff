"""Transcripts against what was said: word error rates of recordings whose words are known."""

from collections.abc import Collection, Mapping
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.speech.scoring.formats.io import content_lines
from roundelay.speech.scoring.formats.trn import read_trn
from roundelay.speech.scoring.score import score
from roundelay.speech.scoring.summary import Summary, summarise


def references(path: Path, names: Collection[str]) -> dict[str, list[str]]:
    """Words said, by name of the transcript, in capitals.

    A .trn file has `words (name)`, where a speaker may stand before the name; any other file `name words`, as Kaldi's
    `text`. Of one recording alone the file may hold nothing but its words.

    Args:
        names: of the transcripts.

    Raises:
        UserError: a file that cannot be read, a name that is there twice, a transcript that it does not have.
    """
    if path.suffix == ".trn":
        found = read_trn(path)
    else:
        found = {}
        for number, line in content_lines(path, "it is to say what was said."):
            name, *words = line.split()
            if name in found:
                raise UserError(f"{path}:{number}: {name} comes twice. Keep one of its lines.")
            found[name] = words
        if len(names) == 1 and not set(found) & set(names):
            words = [word for _, line in content_lines(path) for word in line.split()]
            found = {next(iter(names)): words}
    result, lacking = {}, []
    for name in names:
        key = name if name in found else _with_speaker(path, name, found)
        if key is None:
            lacking.append(name)
        else:
            result[name] = [word.upper() for word in found[key]]
    if lacking:
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        hint = " One with @ is a channel; `--channel` chooses one." if any("@" in name for name in lacking) else ""
        raise UserError(f"{path}: nothing is said there of {', '.join(lacking[:5])}{more}; add their words.{hint}")
    return result


def _with_speaker(path: Path, name: str, found: Mapping[str, object]) -> str | None:
    """The name with a speaker, or a folder, in front."""
    last = name.rpartition("/")[2]
    keys = [key for key in found if key == last or key.endswith((f"-{last}", f"_{last}"))]
    if len(keys) > 1:
        raise UserError(f"{path}: {keys[0]} and {keys[1]} may both be {name}. Name the lines as the recordings.")
    return keys[0] if keys else None


def scored(path: Path, texts: Mapping[str, str]) -> Summary:
    """Word errors of transcripts, by name, in upper or lower case.

    Raises:
        UserError: as `references`.
    """
    wanted = references(path, texts)
    return summarise(score(wanted, {name: text.upper().split() for name, text in texts.items()}))
