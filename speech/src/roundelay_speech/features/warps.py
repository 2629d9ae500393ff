"""Copies of training utterances with frequencies warped, as by longer or shorter vocal tracts: more training data from
the same recordings (Jaitly and Hinton 2013, "Vocal tract length perturbation improves speech recognition").

Formants lie the higher the shorter the vocal tract is; women's is about a seventh shorter than men's. A copy at warp
1.1 has all of them a tenth higher, as the filterbanks hear it, and is as long as the original: unlike one at another
speed, it has its frames, and its alignment would do. Copies are utterances of their own, `vtln1.1-ID`, of speakers of
their own, `vtln1.1-SPEAKER`. Theirs are fixed factors; Jaitly and Hinton draw one for every utterance and epoch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from roundelay.core.errors import UserError
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import listing

GROUPS = ("all", "women", "men", "few")
_GENDERS = {"women": "f", "men": "m"}


@final
@dataclass(frozen=True)
class Warps:
    """The copies to add: factors, and the group of speakers."""

    factors: tuple[float, ...] = ()  # a copy for each but 1
    # utterances that have copies: `all`; of `women`, of `men`, of the `few`, whichever of the two say less; or of
    # speakers, by name.
    of: str | frozenset[str] = "all"


NO_WARPS: Final = Warps()


def group_of(text: str) -> str | frozenset[str]:
    """Parse a group of speakers: a name, or a file that lists speakers, the first word of each line.

    Raises:
        UserError: `text` is neither a group nor a file.
    """
    if text in GROUPS:
        return text
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{text}: no file of speakers. Give one of {', '.join(GROUPS)}, or a file.") from None
    if names := frozenset(line.split()[0] for line in lines if line.strip()):
        return names
    raise UserError(f"{text}: lists no speakers; a line of the file begins with the name of one.")


def warped(utterances: Sequence[Utterance], warps: Warps) -> list[Utterance]:
    """Return the utterances, then the copies at each factor but 1, of originals alone.

    Raises:
        UserError: a factor is not between 0.8 and 1.25, or is given twice; the group is empty, or no speaker is known
            to be in it.
    """
    factors = warps.factors
    if odd := [f for f in factors if not 0.8 <= f <= 1.25] or [f for f in factors if factors.count(f) > 1]:
        raise UserError(f"warp {odd[0]:g}: give factors from 0.8 to 1.25, each once, for example 0.9 and 1.1.")
    some = _chosen([u for u in utterances if not u.copied], warps.of) if factors else []
    copies = [
        dataclasses.replace(u, id=f"vtln{factor:g}-{u.id}", speaker=f"vtln{factor:g}-{u.speaker}", warp=factor)
        for factor in factors
        if factor != 1
        for u in some
    ]
    return [*utterances, *copies]


def _chosen(utterances: Sequence[Utterance], of: str | frozenset[str]) -> list[Utterance]:
    """Return the utterances that `of` selects: all, those of some speakers or those of one gender."""
    if of == "all":
        return list(utterances)
    if isinstance(of, frozenset):
        if unknown := sorted(of - {u.speaker for u in utterances}):
            raise UserError(f"Speakers to be warped who say nothing in train:\n{listing(unknown)}")
        return [u for u in utterances if u.speaker in of]
    seconds = {
        gender: sum(u.duration for u in utterances if (u.gender or "").lower()[:1] == gender)
        for gender in _GENDERS.values()
    }
    if not any(seconds.values()):
        raise UserError(
            f"Whose speech is to be warped ({of}) is not known: the corpus does not say who is a woman or a man "
            "(`spk2gender`). Give a file of speakers."
        )
    gender = _GENDERS.get(of) or min(seconds, key=lambda one: (seconds[one] == 0, seconds[one]))
    if not seconds[gender]:
        raise UserError(f"Speech of {of} is to be warped, and there is none in the training speech.")
    return [u for u in utterances if (u.gender or "").lower()[:1] == gender]
