#!/bin/sh
# Runs a command in a network namespace with a loopback interface of limited bandwidth: tools/limited-link.sh 1gbit COMMAND... (root, iproute2)
set -e
rate=$1
shift
exec unshare --net sh -c 'ip link set lo up && tc qdisc add dev lo root tbf rate "$0" burst 256kb latency 100ms && exec "$@"' "$rate" "$@"
