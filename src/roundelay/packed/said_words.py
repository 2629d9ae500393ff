"""Words of transcripts that a packed model is to know."""

from collections.abc import Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.progress import Progress
from roundelay.packed.folder import G2P
from roundelay.packed.model import Model
from roundelay.packed.rewording import Rewording, reword
from roundelay.packed.transcripts import known_words
from roundelay.speech.data.manifest import Utterance
from roundelay.speech.data.problems import counted, listing
from roundelay.speech.lexicon.g2p import load_g2p
from roundelay.speech.lexicon.lexicon import Pronunciation

_MOST_NAMED = 8


def new_words(model: Model, utterances: Sequence[Utterance]) -> list[str]:
    """Words of the transcripts that the model cannot recognise."""
    return sorted({word for u in utterances for word in u.words if word not in model.lexicon})


def with_said_words(model: Model, new: Sequence[str], scratch: Path, progress: Progress) -> tuple[Path, str]:
    """The folder of the model with words of transcripts that it does not recognise, and a remark that names them.

    Raises:
        UserError: nobody knows how one of them is said; names all.
    """
    listed, out = scratch / "said.txt", scratch / "said"
    guesses = {} if model.columns.spelled(new) is not None else _guesses(model, new)
    write_text(listed, "".join(f"{word}\n" for word in new))
    reword(model.folder, Rewording(out, listed), progress)
    told = [f"{word} ({' '.join(guesses[word])}, guessed)" if word in guesses else word for word in new]
    more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    words = f"{counted(len(new), 'word')} of the transcripts added to those that are recognised"
    return out, f"{words}: {', '.join(told[:_MOST_NAMED])}{more}"


def _guesses(model: Model, words: Sequence[str]) -> dict[str, Pronunciation]:
    """Guessed pronunciations of the words that no dictionary has.

    Raises:
        UserError: some cannot be guessed; names all.
    """
    known = known_words(model)
    guesser = load_g2p(model.folder / G2P) if (model.folder / G2P).is_file() else None
    found, lacking = dict[str, Pronunciation](), list[str]()
    for word in words:
        if word in known:
            continue
        if guesser is not None and (guess := guesser.pronounce(word)):
            found[word] = guess[0].phones
        else:
            lacking.append(word)
    if lacking:
        raise UserError(
            f"{counted(len(lacking), 'word')} of the transcripts without pronunciation, and none can be guessed. Write "
            "them into a file, a line each with their phones behind them (--words FILE), or mend the transcripts:\n"
            f"{listing(lacking)}"
        )
    return found
