#!/bin/sh
# Runs the training scripts with PyTorch's own allocator, with expandable segments and with glake, in turn.
#
#   compare.sh LIBRARY [ROUNDS [ARGUMENT...]]     libglake.so, 3 rounds, arguments of the scripts
#
# One line of JSON for each run.
set -eu
library=$(realpath "$1")
rounds=${2:-3}
[ $# -gt 1 ] && shift 2 || shift
cd "$(dirname "$0")"
export CUBLAS_WORKSPACE_CONFIG=:4096:8
for round in $(seq "$rounds"); do
    for program in gpt conv; do
        for allocator in native expandable glake; do
            python3 $program.py --allocator $allocator --library "$library" --seed "$round" "$@"
        done
    done
done
