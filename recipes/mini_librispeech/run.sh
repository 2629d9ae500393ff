#!/usr/bin/env bash
# Mini LibriSpeech from recordings to word error rates: DNN and BLSTM on an alignment made again with a network, each alone and
# together, with an open vocabulary of the 20,000 most frequent words of a text and with the closed one of the transcripts.
# Trained on the recordings and on copies of them at 0.9 and 1.1 of their speed.
# About an hour and a half on two cores for one seed. What is done is not done again: run it again after an interruption.
#
#   recipes/mini_librispeech/run.sh DIR DICTIONARY TEXT [SEEDS]
#     DIR         OpenSLR 31, or Kaldi data directories train, dev and test
#     DICTIONARY  CMU format, plain or gzipped
#     TEXT        for the language model: a sentence a line, plain or gzipped; none of it from the books of dev and test
set -euo pipefail
usage="usage: recipes/mini_librispeech/run.sh DIR DICTIONARY TEXT [SEEDS]"
source=${1:?$usage} dictionary=${2:?$usage} text=${3:?$usage} seeds=${4:-0}
exp=exp/mini_librispeech
trigram=("decode.text=[$text]" decode.join=30 decode.order=3 decode.method=kneser-ney 'decode.cutoffs=[1,1,2]'
  'decode.scales=[0.1,0.12,0.14]' 'decode.word_costs=[0,0.5]' 'decode.beams=[8,9,10,11]' 'decode.max_actives=[2000,4000,7000]')
open=("${trigram[@]}" decode.vocabulary=20000 "decode.lexicon=$dictionary" decode.guess=true)

[ -f data/mini-librispeech/corpus.json ] ||
  roundelay prepare mini-librispeech --source "$source" --lexicon "$dictionary" --on-missing-words guess \
    --speed 0.9 1.1
[ -f $exp/alignment/align.json ] || roundelay align mini_librispeech
roundelay train mini_librispeech --exp $exp/first schedule.max_epochs=5       # labels the corpus anew
[ -f $exp/realigned/align.json ] || roundelay realign $exp/first --out $exp/realigned
for seed in $seeds; do
  dnn=$exp/dnn-$seed blstm=$exp/blstm-$seed
  roundelay train mini_librispeech --exp "$dnn" --seed "$seed" alignment=$exp/realigned schedule.max_epochs=8
  roundelay train mini_librispeech_blstm --exp "$blstm" --seed "$seed" alignment=$exp/realigned schedule.max_epochs=7
  for vocabulary in open closed; do
    options=("${trigram[@]}")
    [ $vocabulary = closed ] || options=("${open[@]}")
    roundelay decode "$dnn" --out "$dnn-$vocabulary" --set "${options[@]}"
    roundelay decode "$blstm" --out "$blstm-$vocabulary" --set "${options[@]}"
    roundelay decode "$dnn" --with "$blstm" --out "$exp/both-$seed-$vocabulary" --set "${options[@]}"
  done
done
grep -H WER $exp/*-{open,closed}/decode/test/wer.txt
