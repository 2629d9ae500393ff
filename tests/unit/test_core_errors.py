"""Two kinds of failure are kept apart: the user's to mend, and ours."""

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent


def test_a_user_error_is_not_mistaken_for_a_defect_of_ours() -> None:
    """Code that expects a missing key or file (`except KeyError`, `except OSError`) must not swallow it."""
    assert UserError.__mro__[1] is Exception
    assert str(UserError("data/train.jsonl:3: no such speaker. Check utt2spk.")).startswith("data/train.jsonl:3")


def test_nobody_has_to_watch() -> None:
    progress: Progress = Silent()
    progress.start("features", total=3)
    progress.advance(2, note="a")
    progress.finish()
