"""Utterances left out of a corpus, by split, and the share of a split that may be."""

from collections.abc import Mapping, Sequence

from roundelay.core.errors import UserError
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut, counted, listing


def note_left_out(
    problems: Sequence[LeftOut], gone: dict[str, list[LeftOut]], splits: Mapping[str, Sequence[Utterance]]
) -> None:
    """Put each down under its split."""
    split_of = {u.id: name for name, utterances in splits.items() for u in utterances} if problems else {}
    for one in problems:
        gone[split_of[one.id]].append(one)


def check_shares(gone: Mapping[str, Sequence[LeftOut]], kept: Mapping[str, Sequence[Utterance]], most: float) -> None:
    """Raise a UserError if more than the share `most` of a split is left out: the corpus is not what it should be."""
    if not 0 <= most <= 1:
        raise UserError(f"--max-bad-share {most:g}: a share is between 0 and 1; 0.1 is a tenth.")
    for split, problems in gone.items():
        total = len(problems) + len(kept[split])
        if len(problems) > most * total:
            raise UserError(
                f"{len(problems)} of {counted(total, 'utterance')} of `{split}` would be left out, more than the share "
                f"of {most:g} that may be (`--max-bad-share`). Is something wrong with all of them?\n"
                f"{listing([one.reason for one in problems])}"
            )
