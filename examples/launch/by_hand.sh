#!/bin/sh
# One host of several, by hand: no launcher at all, only the variables that torchrun would set.
#
#   HOST=0 HOSTS=2 LEARNERS=2 MASTER_ADDR=10.0.0.1 sh examples/launch/by_hand.sh train an4 --exp exp/an4 --strategy hadpsgd
#   HOST=1 HOSTS=2 LEARNERS=2 MASTER_ADDR=10.0.0.1 sh examples/launch/by_hand.sh train an4 --exp exp/an4 --strategy hadpsgd
#
# LEARNERS is the number on each host. The secret must be the same on all of them; make it once, and copy it:
#
#   (umask 077; head -c 32 /dev/urandom | base64 > secret)
set -eu
: "${HOST:?the number of this host, from 0}" "${HOSTS:?how many there are}" "${MASTER_ADDR:?the address of host 0}"
LEARNERS=${LEARNERS:-1}
export RANK=$((HOST * LEARNERS)) WORLD_SIZE=$((HOSTS * LEARNERS)) LOCAL_RANK=0 LOCAL_WORLD_SIZE="$LEARNERS"
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
if [ -z "${ROUNDELAY_SECRET:-}" ]; then
    export ROUNDELAY_SECRET_FILE="${ROUNDELAY_SECRET_FILE:-secret}"
fi
exec ${ROUNDELAY:-roundelay} "$@"
