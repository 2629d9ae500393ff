#!/usr/bin/env bash
# AN4 with input adapted to speakers: a DNN and, on an alignment made again with the first of them, a BLSTM, both on features of
# fMLLR beside log mel; each alone and the two together, where the BLSTM counts twice. At last a DNN on labels that DNN and
# BLSTM make together, for six epochs: the best of one network.
# Trained on the recordings and on copies of them at 0.9 and 1.1 of their speed. Of dev and test the audio alone is used: the
# transforms of their speakers are estimated from the words that the mixtures recognise.
# What is done is not done again: run it again after an interruption.
#
#   recipes/an4/adapted.sh DIR [SEEDS]       DIR: as for run.sh
set -euo pipefail
source=${1:?usage: recipes/an4/adapted.sh DIR [SEEDS]}
seeds=${2:-0 1 2}
data=data/an4_fmllr exp=exp/an4_fmllr

[ -f $data/corpus.json ] || roundelay prepare an4 --source "$source" --data $data --speed 0.9 1.1
[ -f $exp/alignment/align.json ] || roundelay align an4_fmllr
if [ ! -f $exp/features.yaml ]; then
  roundelay adapt an4_fmllr
  # Without deltas: frames of fMLLR are made of nine neighbours, and the DNN sees eleven of either.
  sed 's/deltas: 2/deltas: 0/' $exp/adaptation/features.yaml > $exp/features.part
  roundelay features $data --features $exp/features.part --speed 0.9 1.1
  mv $exp/features.part $exp/features.yaml
fi
for seed in $seeds; do
  roundelay train an4_fmllr --exp $exp/dnn-$seed --seed "$seed"
done
[ -f $exp/realigned/align.json ] || roundelay realign "$exp/dnn-${seeds%% *}" --out $exp/realigned
for seed in $seeds; do
  roundelay train an4_fmllr_blstm --exp $exp/blstm-$seed --seed "$seed"
  roundelay decode $exp/dnn-$seed
  roundelay decode $exp/blstm-$seed
  roundelay decode $exp/dnn-$seed --with $exp/blstm-$seed:2 --out $exp/both-$seed
done
first=${seeds%% *}
[ -f $exp/together/align.json ] || roundelay realign $exp/dnn-"$first" $exp/blstm-"$first" --out $exp/together
for seed in $seeds; do
  roundelay train an4_fmllr --exp $exp/again-$seed --seed "$seed" alignment=$exp/together \
    schedule.max_epochs=6 schedule.anneal_from=3 schedule.factor=0.4
  roundelay decode $exp/again-$seed
done
grep -H WER $exp/*/decode/test/wer.txt
