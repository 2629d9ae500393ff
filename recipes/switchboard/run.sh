#!/usr/bin/env bash
# Switchboard-1 (with Fisher, if its folders are given), tested on Hub5-2000: recipe ibm-blstm, a deep bidirectional LSTM by a
# large-batch schedule. Made for GPUs: OPTIONS="training.device=cuda". The data are the LDC's: docs/corpora_named.md says which
# folders are needed. RESULTS.md says what of it has been run. What is done is not done again.
#
#   recipes/switchboard/run.sh LDC97S62 swb_ms98_transcriptions LDC2002S09 LDC2002T43 [LDC2004S13 LDC2004T19 ...]
#   STRATEGY=bmuf LEARNERS=16 recipes/switchboard/run.sh ...
set -euo pipefail
source=${1:?usage: recipes/switchboard/run.sh AUDIO TRANSCRIPTS HUB5_AUDIO HUB5_TRANSCRIPTS [FISHER ...]}
shift
also=()
for folder in "$@"; do also+=(--also "$folder"); done
strategy=${STRATEGY:-adpsgd} learners=${LEARNERS:-16}
read -ra options <<< "${OPTIONS:-}"
exp=exp/switchboard

[ -f data/switchboard/corpus.json ] ||
  roundelay prepare switchboard --source "$source" "${also[@]}" --on-missing-words guess
[ -f $exp/alignment/align.json ] || roundelay align switchboard
run=$exp/${strategy//[:,=]/-}-$learners
roundelay train switchboard --exp "$run" --strategy "$strategy" --learners "$learners" "${options[@]}"
roundelay decode "$run" --set decode.ctm=true
# As published error rates are counted: the given reference, its spellings, and Switchboard and CallHome apart.
roundelay score --stm data/switchboard/test.stm --ctm "$run/decode/test/hyp.ctm" --glm data/switchboard/test.glm --subsets
