"""The one exception that means: the person at the keyboard can mend this."""


class UserError(Exception):
    """A mistake that the user can mend, such as bad input or a bad option.

    The message names the file, utterance, rank or option at fault and says what to do about it. The command line prints
    it without a traceback and exits with status 2; anything else that escapes is a defect of ours and keeps its
    traceback.
    """
