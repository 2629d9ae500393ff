#!/usr/bin/env bash
# AN4 from recordings to word error rates: a DNN and a BLSTM on an alignment made again with a network, and the two together.
# Trained on the recordings and on copies of them at 0.9 and 1.1 of their speed: three times the frames, so fewer epochs.
# About an hour on two cores. What is done is not done again: run it again after an interruption.
#
#   recipes/an4/run.sh DIR [SEEDS]       DIR: a folder with Kaldi data directories and lang/an4.dic, or CMU's etc and wav
#   STRATEGY=adpsgd LEARNERS=4 recipes/an4/run.sh DIR       the same with another strategy
set -euo pipefail
source=${1:?usage: recipes/an4/run.sh DIR [SEEDS]}
seeds=${2:-0 1 2}
options=(--strategy "${STRATEGY:-sgd}" --learners "${LEARNERS:-1}")
exp=exp/an4/${STRATEGY:-sgd}

[ -f data/an4/corpus.json ] || roundelay prepare an4 --source "$source" --speed 0.9 1.1
[ -f exp/an4/alignment/align.json ] || roundelay align an4
roundelay train an4 --exp exp/an4/first schedule.max_epochs=6      # labels the corpus anew: one learner, seed 0
[ -f exp/an4/realigned/align.json ] || roundelay realign exp/an4/first --out exp/an4/realigned
for seed in $seeds; do
  roundelay train an4 --exp "$exp/dnn-$seed" --seed "$seed" "${options[@]}" \
    alignment=exp/an4/realigned schedule.max_epochs=8
  roundelay train an4_blstm --exp "$exp/blstm-$seed" --seed "$seed" "${options[@]}" \
    alignment=exp/an4/realigned schedule.max_epochs=8
  roundelay decode "$exp/dnn-$seed"
  roundelay decode "$exp/blstm-$seed"
  roundelay decode "$exp/dnn-$seed" --with "$exp/blstm-$seed" --out "$exp/both-$seed"
done
grep -H WER "$exp"/*/decode/test/wer.txt
