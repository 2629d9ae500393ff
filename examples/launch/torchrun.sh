#!/bin/sh
# One host of several, by torchrun; the same on every host but for HOST.
#
#   HOST=0 HOSTS=2 LEARNERS=2 MASTER_ADDR=10.0.0.1 sh examples/launch/torchrun.sh train an4 --exp exp/an4 --strategy hadpsgd
#
# Torchrun's process with local rank 0 leads its host and starts that host's learners; the others wait for its end. So a
# learner that dies is replaced by Roundelay, and torchrun does not notice. --max-restarts 0: Roundelay resumes by itself.
set -eu
: "${HOST:?the number of this host, from 0}" "${HOSTS:?how many there are}" "${MASTER_ADDR:?the address of host 0}"
if [ -z "${ROUNDELAY_SECRET:-}" ]; then
    export ROUNDELAY_SECRET_FILE="${ROUNDELAY_SECRET_FILE:-secret}"
fi
exec ${PYTHON:-python} -m torch.distributed.run --nnodes "$HOSTS" --node-rank "$HOST" \
    --nproc-per-node "${LEARNERS:-1}" --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" \
    --max-restarts 0 -m roundelay.cli "$@"
