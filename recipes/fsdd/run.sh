#!/usr/bin/env bash
# A model of ten spoken digits of less than 1 MB. A minute or two on two cores. What is done is not done again.
#
#   recipes/fsdd/run.sh [DIR] [MODEL]        DIR: the corpus (else it is downloaded); MODEL: the folder to make
#                                            (models/digits)
set -euo pipefail
source=${1:-}
model=${2:-models/digits}
given=(--download)
[ -z "$source" ] || given=(--source "$source")

[ -f data/fsdd/corpus.json ] || roundelay prepare fsdd "${given[@]}" --speed 0.9 1.1
[ -f exp/fsdd/alignment/align.json ] || roundelay align fsdd
roundelay train fsdd --exp exp/fsdd/run model.context=2 model.width=128
[ -f exp/fsdd/run/decode/test/wer.txt ] || roundelay decode exp/fsdd/run
[ -f "$model/packed.json" ] || roundelay pack exp/fsdd/run --out "$model"
cat "$model/README.md"
grep -H WER exp/fsdd/run/decode/*/wer.txt
