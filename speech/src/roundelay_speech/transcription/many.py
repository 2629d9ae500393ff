"""One call of `roundelay transcribe`: a list of recordings into a folder or onto standard output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.data.problems import counted
from roundelay_speech.decode.wishes import Wishes
from roundelay_speech.transcription.formats import ALONE, FORMATS, TIMED
from roundelay_speech.transcription.inputs import Recording
from roundelay_speech.transcription.kept import TranscriptFolder
from roundelay_speech.transcription.transcribing import Finished, Options, Recogniser, SpeakerIs, Transcriber

ENOUGH_FOR_PROCESSES = 600.0
"""Seconds of audio from which on worker processes save more time than they take to start."""


@final
@dataclass(eq=False)
class CallResult:
    """Results of a call."""

    # words by name of the transcript, those that were there already included.
    texts: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)  # recordings that could not be used
    notes: list[str] = field(default_factory=list)  # on others
    kept: int = 0  # recordings that were there already
    seconds: float = 0.0  # of audio that was heard now, all channels together
    speech: float = 0.0  # seconds of it that were recognised, pauses left out
    real_time_factor: float = 0.0  # seconds of one core per second of that audio

    def report(self, recordings: int) -> list[str]:
        """Return lines for people: what is amiss, how much was done and how fast, what failed."""
        lines = [*self.notes[:5], *([f"... and {len(self.notes) - 5} more"] if len(self.notes) > 5 else [])]
        done = f"{counted(recordings, 'recording')}"
        done += f", {self.kept} of them transcribed before" if self.kept else ""
        if self.seconds:
            pauses = f", {self.speech:,.1f} s of them speech," if self.speech < 0.999 * self.seconds else ""
            done += f"; {self.seconds:,.1f} s of audio{pauses} at {self.real_time_factor:.3f} x real time on one core"
        lines.append(done)
        if self.failed:
            lines.append(f"{len(self.failed)} of {counted(recordings, 'recording')} could not be transcribed:")
            lines += [f"  {problem}" for problem in self.failed]
        return lines


def transcribe_all(
    model: Recogniser,
    recordings: Sequence[Recording],
    options: Options,
    name: str,
    to: TranscriptFolder | Callable[[str], None],
    progress: Progress,
) -> CallResult:
    """Transcribe all recordings; the bad ones are in the result.

    Args:
        name: of the format.
        to: a folder, in which whole transcripts are kept as they are; or whoever takes text.

    Raises:
        UserError: several recordings cannot follow each other in this format.
    """
    result, pending = CallResult(), recordings
    if isinstance(to, TranscriptFolder):
        pending = _pending(recordings, to, options.speaker, result)
    elif name in ALONE and len(recordings) > 1:
        raise UserError(f"--format {name}: a file holds one transcript. Give --out DIR for a file for each recording.")
    transcriber = Transcriber(model, options)
    for one in transcriber.run(pending, progress):
        if one.note:
            result.notes.append(one.note)
        if one.problem:
            result.failed.append(one.problem)
            continue
        result.texts |= {transcript.name: transcript.text for transcript in one.transcripts}
        if isinstance(to, TranscriptFolder):
            to.write(one.recording, one.transcripts)
        else:
            to(_shown(one, name, several=len(recordings) > 1))
    result.seconds, result.speech = transcriber.heard, transcriber.seconds
    result.real_time_factor = transcriber.real_time_factor
    return result


def _shown(one: Finished, name: str, *, several: bool) -> str:
    """Return the transcripts of a recording, one after the other; text says whose it is where there are several."""
    if name in ALONE and len(one.transcripts) > 1:
        channels = ", ".join(str(transcript.channel) for transcript in one.transcripts)
        raise UserError(
            f"{one.recording.source}: --format {name}: a file holds one transcript, and channels {channels} are "
            "transcribed. Give --channel, or --out DIR for a file for each."
        )
    if name != "txt" or not (several or len(one.transcripts) > 1):
        return "".join(FORMATS[name](transcript) for transcript in one.transcripts)
    return "".join(f"{transcript.name}: {transcript.text}\n" for transcript in one.transcripts)


def _pending(
    recordings: Sequence[Recording], folder: TranscriptFolder, speaker: SpeakerIs, result: CallResult
) -> list[Recording]:
    """Return recordings that are not in the folder; with all others whose speech is normalised together with theirs."""

    def group(recording: Recording) -> str:
        return {"file": recording.name, "folder": str(recording.path.parent), "all": ""}[speaker]

    there = {recording.name: folder.whole(recording) for recording in recordings}
    lacking = {group(recording) for recording in recordings if there[recording.name] is None}
    for recording in recordings:
        if group(recording) not in lacking:
            result.kept += 1
            result.texts |= {one.name: one.text for one in there[recording.name] or ()}
    return [recording for recording in recordings if group(recording) in lacking]


def options_of(options: Options, name: str) -> dict[str, object]:
    """Return settings that decide what is in a transcript, beside the model, for `TranscriptFolder`."""
    cutting = options.cutting
    return {
        "channel": options.channel,
        "speaker": options.speaker,
        "longest": cutting.longest,
        "pause": cutting.pause,
        "detector": cutting.detector,
        "times": name in TIMED,
        **_asked(options.asked),
    }


def _asked(asked: Wishes) -> dict[str, object]:
    """Return what was asked for; nothing, if nothing was, so that folders of earlier versions go on."""
    told: dict[str, object] = {"nbest": asked.strings} if asked.strings else {}
    return {**told, "favour": list(asked.favoured), "bonus": asked.bonus} if asked.favoured else told
