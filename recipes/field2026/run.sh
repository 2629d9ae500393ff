#!/usr/bin/env bash
# The field of 2026 on AN4: losses and words of low-communication training beside one learner, and how well each adapts.
# RESULTS.md has the commands of the other experiments. What is done is not done again: run it again after an interruption.
#
#   recipes/field2026/run.sh DIR                    DIR: as for recipes/an4/run.sh
#   SEEDS=5 recipes/field2026/run.sh DIR model.width=256        (options of the recipe at the end)
set -euo pipefail
source=${1:?usage: recipes/field2026/run.sh DIR [SECTION.KEY=VALUE ...]}
shift
exp=exp/an4/field2026
[ -f data/an4/corpus.json ] || roundelay prepare an4 --source "$source"
[ -f exp/an4/alignment/align.json ] || roundelay align an4
roundelay compare li2017-dnn --exp "$exp" --learners 1,4 --seeds "${SEEDS:-3}" --runtime sim --no-decode \
  --strategies ssgd adpsgd,weights=equal diloco,period=20 sparseloco,period=20,density=0.015625 \
  --tune schedule.learning_rate=0.1,0.2,0.4,0.8,1.6 \
  corpus=data/an4 alignment=exp/an4/alignment init.first=null optimizer.momentum=0 training.rate=as-is \
  'model={name: dnn, layers: 2, width: 64, context: 2, dropout: 0.0}' training.minibatch_per_learner=128 \
  'schedule={rule: anneal, learning_rate: 0.1, anneal_from: 1, factor: 0.5, max_epochs: 3}' \
  'decode.splits=[dev,test]' decode.order=2 "$@"
for run in "$exp"/*-seed[1-9]*; do                 # with those that were judged
  [ ! -f "$run/results.json" ] || python "$(dirname "$0")/adapt.py" "$run" --rates 0.0003
done
