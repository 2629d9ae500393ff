#!/usr/bin/env bash
# The grid of Li et al. 2017, tables 1 and 3, in their protocol: four strategies beside one learner, with the periods of the paper.
# AN4 and mini LibriSpeech by the same recipes at their size, a few hours on two cores; LibriSpeech as published, which needs a cluster.
# What is done is not done again: run it again after an interruption.
#
#   recipes/li2017/run.sh an4 DIR                              DIR: as for recipes/an4/run.sh
#   recipes/li2017/run.sh mini-librispeech DIR DICTIONARY      as for recipes/mini_librispeech/run.sh
#   recipes/li2017/run.sh librispeech DIR                      DIR: where archives are, or are downloaded to
#   NETWORK=cldnn LEARNERS=1,4,8 SEEDS=5 recipes/li2017/run.sh an4 DIR schedule.max_epochs=6      (options of the recipe at the end)
set -euo pipefail
usage="usage: recipes/li2017/run.sh an4|mini-librispeech|librispeech DIR [DICTIONARY] [SECTION.KEY=VALUE ...]"
corpus=${1:?$usage} source=${2:?$usage}
shift 2
network=${NETWORK:-dnn}
size=() tune=() prepare=(--source "$source")
case $corpus in
  an4) ;;
  mini-librispeech) prepare+=(--lexicon "${1:?$usage}" --on-missing-words guess); shift ;;
  librispeech)
    prepare+=(--download --split dev=dev-clean --on-missing-words guess)
    for part in train-clean-100 train-clean-360 train-other-500; do prepare+=(--split "train=$part"); done
    for part in test-clean test-other; do prepare+=(--split "$part=$part"); done ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
if [ "$corpus" != librispeech ]; then
  size=('decode.splits=[dev,test]' decode.order=2 "corpus=data/$corpus" "alignment=exp/${corpus//-/_}/alignment")
  case $network in
    dnn)  # plain SGD: with momentum 0.9 asgd diverged even at 0.0025; each strategy at the best of these rates, from one start
      size+=(model.width=256 training.minibatch_per_learner=256 optimizer.momentum=0 init.first.learning_rate=0.03)
      tune=(--tune schedule.learning_rate=0.008,0.015,0.03,0.06,0.12,0.24) ;;
    cldnn)  # as small as AN4: 8 subsequences a minibatch, so that an epoch has a few blocks of 80; asgd bears the smallest rates alone
      size+=('model={name: cldnn, maps: 8, context: 2, width: 64, cells: 48, projection: null, dropout: 0.0}')
      size+=(training.minibatch_per_learner=8 optimizer.momentum=0 init.first.learning_rate=0.5)
      tune=(--tune schedule.learning_rate=0.015,0.03,0.06,0.12,0.25,0.5,1) ;;
  esac
fi
strategies=(asgd,period=5 bmuf,period=5 bsp,period=5 easgd,period=5)
[ "$network" = dnn ] || strategies=(asgd,period=5 bmuf,period=80 bsp,period=5 easgd,period=64)

[ -f "data/$corpus/corpus.json" ] || roundelay prepare "$corpus" "${prepare[@]}"
[ -f "exp/${corpus//-/_}/alignment/align.json" ] || roundelay align "${corpus//-/_}"
roundelay compare "li2017-$network" --exp "exp/${corpus//-/_}/li2017-$network" --learners "${LEARNERS:-1,4}" \
  --seeds "${SEEDS:-3}" "${tune[@]}" --strategies "${strategies[@]}" "${size[@]}" "$@"
