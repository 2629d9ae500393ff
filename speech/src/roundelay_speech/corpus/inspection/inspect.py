"""Inspection of a corpus before hours of training: all checks, each finding with what mends it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.corpus.checks import one_rate
from roundelay_speech.corpus.inspection.findings import Finding, Inspection, SplitNumbers, in_order
from roundelay_speech.corpus.inspection.people import people_findings
from roundelay_speech.corpus.inspection.sound import SoundFacts, measure_all, sound_findings
from roundelay_speech.corpus.inspection.source import InspectedCorpus, open_corpus
from roundelay_speech.corpus.inspection.transcripts import alignment_findings, length_findings, spelling_findings
from roundelay_speech.prepared import TRAIN


@dataclass(frozen=True)
class InspectOptions:
    """Options of an inspection.

    Attributes:
        splits: name -> data directory inside the corpus; empty: all that are there.
        root: what paths of `wav.scp` are relative to; None: the corpus.
        lexicon: dictionary in CMU's format; None: that of a prepared corpus, if it is one.
        alignment: folder of an alignment that is there already, for its comparison of transcripts.
        workers: processes that listen; None: as many as pay.
    """

    splits: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    lexicon: Path | None = None
    alignment: Path | None = None
    workers: int | None = None


def inspect_corpus(folder: Path, options: InspectOptions, progress: Progress) -> Inspection:
    """Inspect a prepared corpus or Kaldi data directories; nothing is written.

    Raises:
        UserError: there is no corpus; its faults are findings.
    """
    corpus = open_corpus(folder, options.splits, options.root, options.lexicon, progress)
    found = [*corpus.findings, *_rates(corpus), *people_findings(corpus.splits)]
    sounds: dict[str, dict[str, SoundFacts]] | None = None
    unseen = []
    if corpus.audio:
        sounds = measure_all(corpus.splits, corpus.root, progress, options.workers)
        found += sound_findings(corpus.splits, sounds)
    else:
        unseen.append("Features were given instead of audio: nothing was listened to.")
    found += spelling_findings(corpus.splits, corpus.lexicon) + length_findings(corpus.splits, sounds, corpus.lexicon)
    if options.alignment is not None:
        found += alignment_findings(options.alignment)
    else:
        unseen.append(
            "Exchanged transcripts of like length show only after `roundelay align`, which compares all (--alignment)."
        )
    if corpus.lexicon is None:
        unseen.append("Words were held against no dictionary (--lexicon).")
    said = {finding.what for finding in found if finding.kind != "prepare"}
    kept = [finding for finding in found if finding.kind != "prepare" or finding.what not in said]
    numbers = {split: SplitNumbers.of(some) for split, some in corpus.splits.items()}
    return Inspection(str(folder), numbers, in_order(kept), tuple(unseen))


def _rates(corpus: InspectedCorpus) -> list[Finding]:
    """Return a finding on several sampling rates, in the words of `prepare`."""
    splits = {name: some for name, some in corpus.splits.items() if some}
    if not corpus.audio or not splits:
        return []
    try:
        one_rate(splits if TRAIN in splits else {TRAIN: splits[next(iter(splits))], **splits}, None, "error")
    except UserError as error:
        mend = "`roundelay prepare ... --rate HZ` resamples all audio as it is read."
        return [Finding("rates", "error", "", str(error), mend)]
    return []
