#!/usr/bin/env bash
# Mini LibriSpeech with input adapted to speakers, open vocabulary: a DNN and, on labels that it made again, a BLSTM, both
# on features of fMLLR beside log mel; each alone and the two together, where the BLSTM counts twice.
# Trained on the recordings and on copies of them at 0.9 and 1.1 of their speed. Of dev and test the audio alone is used: the
# transforms of their readers are estimated from the words that the mixtures recognise.
# What is done is not done again: run it again after an interruption.
#
#   recipes/mini_librispeech/adapted.sh DIR DICTIONARY TEXT [SEEDS]       as for run.sh
#
# The more text the better: RESULTS.md says what 67 million words of books are worth, and books.py beside this script makes such
# a text. Estimating takes 6 GB of memory then. The larger language model needs KenLM: pip install 'roundelay[speech,ngram]'
set -euo pipefail
usage="usage: recipes/mini_librispeech/adapted.sh DIR DICTIONARY TEXT [SEEDS]"
source=${1:?$usage} dictionary=${2:?$usage} text=${3:?$usage} seeds=${4:-0}
data=data/mini_librispeech_fmllr exp=exp/mini_librispeech_fmllr
open=("decode.text=[$text]" decode.join=30 decode.order=3 decode.method=kneser-ney 'decode.cutoffs=[1,1,2]' decode.prune=3e-7
  decode.vocabulary=100000 "decode.lexicon=$dictionary" decode.guess=true)

[ -f $data/corpus.json ] ||
  roundelay prepare mini-librispeech --source "$source" --data $data --lexicon "$dictionary" --on-missing-words guess \
    --speed 0.9 1.1
[ -f $exp/alignment/align.json ] || roundelay align mini_librispeech_fmllr
if [ ! -f $exp/features.yaml ]; then
  # Fewer passes than the recipe aligns with, and one search: these mixtures only say who speaks.
  roundelay adapt mini_librispeech_fmllr "${open[@]}" decode.scale=0.1 'decode.word_costs=[0]' decode.beam=10 decode.max_active=3000 \
    align.tri_passes=10 'align.tri_realign=[3,7]'
  # Without deltas: frames of fMLLR are made of nine neighbours, and the DNN sees eleven of either.
  sed 's/deltas: 2/deltas: 0/' $exp/adaptation/features.yaml > $exp/features.part
  roundelay features $data --features $exp/features.part --speed 0.9 1.1
  mv $exp/features.part $exp/features.yaml
fi
for seed in $seeds; do
  roundelay train mini_librispeech_fmllr --exp "$exp/dnn-$seed" --seed "$seed"
done
if [ ! -f $exp/realigned/align.json ]; then
  roundelay realign "$exp/dnn-${seeds%% *}" --out $exp/realigned
  ln -sfn ../alignment/graphs $exp/realigned/graphs  # of the same tied states
fi
search=(decode.rescore_order=4 decode.beam=11 decode.max_active=2000 'decode.scales=[0.07,0.1,0.14]' 'decode.word_costs=[0,0.5]')
for seed in $seeds; do
  dnn=$exp/dnn-$seed blstm=$exp/blstm-$seed
  roundelay train mini_librispeech_fmllr_blstm --exp "$blstm" --seed "$seed"
  roundelay decode "$dnn" --out "$dnn-open" --set "${open[@]}" "${search[@]}"
  roundelay decode "$blstm" --out "$blstm-open" --set "${open[@]}" "${search[@]}"
  roundelay decode "$dnn" --with "$blstm:2" --out "$exp/both-$seed-open" --set "${open[@]}" "${search[@]}"
done
grep -H WER $exp/*-open/decode/test/wer.txt
