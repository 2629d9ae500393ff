"""Acoustic models for other programs: ONNX, and programs of `torch.export` (docs/exporting.md)."""

from collections.abc import Mapping

from roundelay.core.configure import about_of
from roundelay.core.plugins import WithPlugins, load_plugin

EXPORT_FORMATS: Mapping[str, str] = WithPlugins(
    "exports",
    {
        "kaldi": "a corpus as Kaldi reads it, or a packed model for its programs",
        "lhotse": "a corpus as Lhotse reads it",
        "onnx": "a model as ONNX",
        "torch": "a model as a program of torch.export",
        "sherpa": "a model for sherpa-onnx",
    },
    lambda found: about_of(load_plugin(found)),
)
"""Sentences on the formats of `roundelay export`, by name. Another package's is a function `export(source, out)` that
writes a corpus, run or packed model into a folder and returns a sentence, by an entry point of the group
`roundelay.exports`."""
