"""Marks in transcripts: the signs of many corpora for noises, for pauses and for speech that was not understood.

`<cough>`, `[door slams]`, `{breath}`, `(laughter)`, `*laugh*`, `++um++`, `%hesitation`, `&=laughs`; `((words))` and
`(( ))` of Fisher, for words that were guessed and speech that was not understood; `[laughter-yes]`, which is said while
laughing, and `th[ink]-`, which is broken off, of Switchboard; `the(2)` of Sphinx, a way to say a word.
"""

import re

MARKS = re.compile(
    r"""\(\((?P<guessed>[^()]*)\)\)            # ((words)): a transcriber's guess
    | (?<=\w)\((?P<variant>\d+)\)              # the(2): a way to say it
    | \[(?:laugh\w*-|[^][/\s]+/)(?P<said>[^][/\s]+)\]  # [laughter-yes], [splace/space]
    | \[(?P<square>[^][]*)\]
    | \{(?P<curly>[^{}]*)\}
    | <(?P<angle>[^<>]*)>
    | \((?P<round>[^()]*)\)
    | (?<!\S)\*+(?P<star>[^*]+)\*+(?![\w*])
    | (?<!\S)\+{1,2}(?P<plus>[^+\s]+)\+{1,2}
    | (?<!\S)(?:[%!@#]|&[=+-]|_+)(?P<prefix>[^\W\d_]\w*)""",
    re.VERBOSE,
)


def is_mark(word: str) -> bool:
    """Return True for a mark, or a piece of one of several words (`[door`), whose letters do not tell the sound."""
    match = MARKS.fullmatch(word)
    if match is not None:
        return match.lastgroup not in ("said", "variant")
    return word[:1] in ("[", "<", "{") or word[-1:] in ("]", ">", "}")


def parted(text: str) -> tuple[list[str], list[str]]:
    """Split a transcript into words and marks; return both."""
    marks = [match.group() for match in MARKS.finditer(text) if is_mark(match.group())]
    return MARKS.sub(lambda match: " " if is_mark(match.group()) else match.group(), text).split(), marks
