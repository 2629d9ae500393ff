#!/usr/bin/env bash
# A model of AN4 of less than 1 MB: letters, numbers, dates and commands; the one that comes with the package.
# Some minutes on two cores. What is done is not done again: run it again after an interruption.
#
#   recipes/an4/packed.sh DIR [MODEL]        DIR: as for run.sh; MODEL: the folder to make (models/an4)
set -euo pipefail
source=${1:?usage: recipes/an4/packed.sh DIR [MODEL]}
model=${2:-models/an4}
small=(alignment=exp/an4/small/alignment)
network=(model.context=2 model.layers=3 model.width=128 model.dropout=0.1 schedule.max_epochs=10)

[ -f data/an4/corpus.json ] || roundelay prepare an4 --source "$source" --speed 0.9 1.1
[ -f exp/an4/small/alignment/align.json ] || roundelay align an4 "${small[@]}" align.tied_states=150
roundelay train an4 --exp exp/an4/small/run "${small[@]}" "${network[@]}"
[ -f exp/an4/small/run/decode/test/wer.txt ] || roundelay decode exp/an4/small/run
[ -f "$model/packed.json" ] || roundelay pack exp/an4/small/run --out "$model"
cat "$model/README.md"
grep -H WER exp/an4/small/run/decode/*/wer.txt
