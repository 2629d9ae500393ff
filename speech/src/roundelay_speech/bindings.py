"""Packages of the extra `speech`, bindings of libraries in C and C++, each loaded when it is first used."""

from roundelay.core.extras import Binding

kaldi_decoder = Binding("kaldi_decoder", "speech")
kaldialign = Binding("kaldialign", "speech")
kaldifst = Binding("kaldifst", "speech")
soundfile = Binding("soundfile", "speech")
