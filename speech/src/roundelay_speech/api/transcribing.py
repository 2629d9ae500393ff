"""Transcription from Python: transcribe."""

from pathlib import Path

from roundelay.core.progress import Progress
from roundelay.terminal import Bar
from roundelay_speech.packed.model import Model, load_model
from roundelay_speech.transcription.inputs import recordings
from roundelay_speech.transcription.transcribing import Finished, Options, Transcriber

TRANSCRIBING = Options()


def transcribe(
    model: Path | str | Model, *files: Path | str, options: Options = TRANSCRIBING, progress: Progress | None = None
) -> list[Finished]:
    """Recognise recordings of any kind and length with a packed model.

    Args:
        model: the folder of a packed model, the result of `load_model`, or the name of a model that comes with the
            package.
        files: recordings, folders of them, or lists.
        options: channels, speakers, cutting and processes.

    Returns:
        For each recording its `transcripts` by channel, with text, words and times; or its fault, in `problem`.

    Raises:
        UserError: no such model; there is no recording.
    """
    loaded = model if isinstance(model, Model) else load_model(model)
    return list(Transcriber(loaded, options).run(recordings([str(file) for file in files]), progress or Bar()))
