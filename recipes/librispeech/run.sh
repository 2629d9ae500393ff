#!/usr/bin/env bash
# LibriSpeech, 960 hours, with the network and schedule of Li et al. 2017 and any strategy. Needs some 200 GB of disk and a cluster's
# patience; RESULTS.md says what of it has been run. What is done is not done again: run it again after an interruption.
#
#   recipes/librispeech/run.sh DIR            DIR: where archives are, or are downloaded to
#   STRATEGY=bmuf LEARNERS=16 PARTS="train-clean-100" recipes/librispeech/run.sh DIR
set -euo pipefail
source=${1:?usage: recipes/librispeech/run.sh DIR}
strategy=${STRATEGY:-adpsgd} learners=${LEARNERS:-4}
exp=exp/librispeech
parts=()
for part in ${PARTS:-train-clean-100 train-clean-360 train-other-500}; do parts+=(--split "train=$part"); done
for part in test-clean test-other; do parts+=(--split "$part=$part"); done

[ -f data/librispeech/corpus.json ] ||
  roundelay prepare librispeech --download --source "$source" "${parts[@]}" --split dev=dev-clean --on-missing-words guess
[ -f $exp/alignment/align.json ] || roundelay align librispeech
run=$exp/${strategy//[:,=]/-}-$learners
roundelay train librispeech --exp "$run" --strategy "$strategy" --learners "$learners"
# The graph is made of a pruned grammar, and what it finds is rescored with the whole one, of which no graph fits into memory.
models=https://www.openslr.org/resources/11
for arpa in 3-gram.pruned.3e-7.arpa.gz 3-gram.arpa.gz; do
  [ -f "$source/$arpa" ] || { echo "put the language model there: $source/$arpa ($models/$arpa)"; exit 1; }
done
roundelay decode "$run" --set "decode.arpa=$source/3-gram.pruned.3e-7.arpa.gz" "decode.rescore=$source/3-gram.arpa.gz" \
  decode.lattice_beam=8
grep -H WER "$run"/decode/*/wer.txt
