"""Sentences of the demo corpus, their pronunciation and their speakers: data for `demo`, and the draw of one sentence.

The grammar leaves real choices to the recogniser: numbers that differ in one phone (fourteen, forty), letters that
rhyme, digit strings of any order.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SHORTEST, LONGEST = 2, 7  # words per sentence

# CMU phones. Second pronunciations are those of the accents below.
LEXICON = """\
ZERO Z IY R OW
ONE W AH N
ONE(2) W AA N
TWO T UW
THREE TH R IY
FOUR F AO R
FOUR(2) F AO
FIVE F AY V
SIX S IH K S
SEVEN S EH V AH N
EIGHT EY T
NINE N AY N
THIRTEEN TH ER T IY N
FOURTEEN F AO R T IY N
FOURTEEN(2) F AO T IY N
FIFTEEN F IH F T IY N
SIXTEEN S IH K S T IY N
THIRTY TH ER T IY
THIRTY(2) TH ER D IY
FORTY F AO R T IY
FORTY(2) F AO T IY
FORTY(3) F AO D IY
FIFTY F IH F T IY
SIXTY S IH K S T IY
B B IY
D D IY
E IY
G JH IY
P P IY
T T IY
TURN T ER N
GO G OW
SET S EH T
OPEN OW P AH N
SHUT SH AH T
START S T AA R T
START(2) S T AA T
STOP S T AA P
MOVE M UW V
CALL K AO L
LEFT L EH F T
RIGHT R AY T
UP AH P
DOWN D AW N
TO T UW
TO(2) T AH
THE DH AH
AND AE N D
THEN DH EH N
ON AA N
ON(2) AO N
OFF AO F
OFF(2) AA F
CHANNEL CH AE N AH L
GATE G EY T
LIGHT L AY T
DOOR D AO R
DOOR(2) D AO
VOLUME V AA L Y UW M
RADIO R EY D IY OW
"""

# Symbol -> (weight, expansion); lower-case words are symbols.
GRAMMAR: Mapping[str, Sequence[tuple[float, str]]] = {
    "sentence": ((6, "command"), (2, "command link command")),
    "link": ((2, "AND"), (2, "THEN"), (1, "AND THEN")),
    "command": (
        (3, "TURN side"),
        (2, "MOVE way number"),
        (2, "GO way"),
        (3, "GO TO place"),
        (3, "SET quantity TO number"),
        (2, "TURN THE device state"),
        (1, "TURN state THE device"),
        (2, "action entrance"),
        (1, "action gate"),
        (1, "begin THE device"),
        (4, "CALL digits"),
    ),
    "side": ((1, "LEFT"), (1, "RIGHT")),
    "way": ((1, "UP"), (1, "DOWN"), (1, "LEFT"), (1, "RIGHT")),
    "place": ((2, "CHANNEL number"), (2, "gate"), (1, "THE entrance")),
    "gate": ((2, "GATE letter"), (3, "GATE letter digit")),
    "entrance": ((1, "DOOR"), (1, "THE DOOR"), (1, "GATE")),
    "quantity": ((1, "THE VOLUME"), (1, "VOLUME"), (1, "THE CHANNEL"), (1, "CHANNEL")),
    "device": ((1, "LIGHT"), (1, "RADIO")),
    "state": ((1, "ON"), (1, "OFF")),
    "action": ((1, "OPEN"), (1, "SHUT")),
    "begin": ((1, "START"), (1, "STOP")),
    "number": ((1, "digit"), (2, "teen")),
    "digits": ((1, "digit digit digit"), (2, "digit digit digit digit"), (1, "digit digit digit digit digit")),
    "digit": tuple((1, w) for w in ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]),
    "teen": tuple((1, w) for w in ["THIRTEEN", "FOURTEEN", "FIFTEEN", "SIXTEEN", "THIRTY", "FORTY", "FIFTY", "SIXTY"]),
    "letter": tuple((1, w) for w in ["B", "D", "E", "G", "P", "T"]),
}


@dataclass(frozen=True)
class Speaker:
    """One synthetic voice."""

    name: str
    voice: str  # espeak-ng's name, `language+variant`
    rate: int  # words per minute
    pitch: int  # 0 to 99
    gender: str


# Accents, variants, rates and pitches differ between splits as between people: nobody of one is in another, and no
# variant (the size and shape of a vocal tract). Variants with breath noise are not repeatable, see demo_voice.
SPEAKERS: Mapping[str, Sequence[Speaker]] = {
    "train": (
        Speaker("demo-ada", "en-us+grandma", 165, 55, "f"),
        Speaker("demo-bea", "en-us+aunty", 190, 50, "f"),
        Speaker("demo-cal", "en-us+m1", 160, 40, "m"),
        Speaker("demo-dan", "en-us+m3", 205, 35, "m"),
        Speaker("demo-eli", "en-us", 175, 50, "m"),
        Speaker("demo-fay", "en+Annie", 180, 55, "f"),
        Speaker("demo-gus", "en+m4", 150, 30, "m"),
        Speaker("demo-hal", "en+m7", 195, 45, "m"),
        Speaker("demo-ida", "en-gb-scotland+f4", 170, 50, "f"),
        Speaker("demo-jim", "en-gb-scotland+m2", 185, 40, "m"),
        Speaker("demo-kit", "en-gb-x-rp+m5", 165, 55, "m"),
        Speaker("demo-lou", "en-gb-x-rp+belinda", 155, 45, "f"),
        Speaker("demo-max", "en-us+klatt", 170, 45, "m"),
        Speaker("demo-nat", "en-us+klatt2", 190, 60, "m"),
        Speaker("demo-oda", "en-us+linda", 200, 50, "f"),
        Speaker("demo-pat", "en-us+Michael", 180, 40, "m"),
    ),
    "dev": (
        Speaker("demo-quin", "en-us+m6", 185, 42, "m"),
        Speaker("demo-rae", "en+anika", 170, 50, "f"),
        Speaker("demo-sam", "en-gb-scotland+rob", 195, 48, "m"),
        Speaker("demo-tess", "en-us+steph", 175, 52, "f"),
    ),
    "test": (
        Speaker("demo-uma", "en-us+f1", 180, 50, "f"),
        Speaker("demo-vic", "en-us+robert", 190, 38, "m"),
        Speaker("demo-wes", "en+travis", 175, 52, "m"),
        Speaker("demo-xia", "en-gb-x-rp+Andrea", 200, 45, "f"),
    ),
}


def sentence(rng: np.random.Generator) -> list[str]:
    """Draw one sentence of SHORTEST to LONGEST words."""
    while True:
        words = _expand("sentence", rng)
        if SHORTEST <= len(words) <= LONGEST:
            return words


def spoken(words: Sequence[str], rng: np.random.Generator) -> str:
    """Return text of a sentence for the synthesiser: letters in capitals, now and then a comma, which makes a pause."""
    said = [word if len(word) == 1 else word.lower() for word in words]
    pauses = rng.random(len(said) - 1) < 0.08
    return "".join(word + (", " if pause else " ") for word, pause in zip(said, pauses, strict=False)) + said[-1] + "."


def _expand(symbol: str, rng: np.random.Generator) -> list[str]:
    if not re.fullmatch("[a-z]+", symbol):
        return [symbol]
    weights = np.array([weight for weight, _ in GRAMMAR[symbol]])
    chosen = int(rng.choice(len(weights), p=weights / weights.sum()))
    return [word for part in GRAMMAR[symbol][chosen][1].split() for word in _expand(part, rng)]
