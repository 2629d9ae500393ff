#!/usr/bin/env bash
# Large minibatches with a recurrent network on AN4: synchronous, rings and delay-by-one beside one learner, at the recipe's minibatch
# and at four times as much, with the schedule of recipe ibm-blstm. Some hours on two cores. What is done is not done again: run it
# again after an interruption.
#
#   recipes/ibm-blstm-small/run.sh DIR                                        DIR: as for recipes/an4/run.sh
#   LEARNERS=1,4,8 SEEDS=5 recipes/ibm-blstm-small/run.sh DIR schedule.max_epochs=16          (options of the recipe at the end)
set -euo pipefail
source=${1:?usage: recipes/ibm-blstm-small/run.sh DIR [SECTION.KEY=VALUE ...]}
shift

[ -f data/an4/corpus.json ] || roundelay prepare an4 --source "$source"
[ -f exp/an4/alignment/align.json ] || roundelay align an4
roundelay compare ibm-blstm-small --exp exp/an4/ibm-blstm-small --learners "${LEARNERS:-1,4}" --seeds "${SEEDS:-3}" \
  --strategies ssgd adpsgd:fixed-ring adpsgd:random-ring delay-by-one training.minibatch=160,640 "$@"
