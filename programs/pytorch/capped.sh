#!/bin/sh
# Runs a training script with little more memory than its tensors take: 1.05 of the most that was requested at a
# time, as a run without a cap says.
#
#   capped.sh LIBRARY [PROGRAM [ARGUMENT...]]     libglake.so, gpt or conv, arguments of the script
#
# One line of JSON for each run; `out_of_memory_at_step` says where one failed.
set -eu
library=$(realpath "$1")
program=${2:-gpt}
[ $# -gt 1 ] && shift 2 || shift
cd "$(dirname "$0")"
export CUBLAS_WORKSPACE_CONFIG=:4096:8
free=$(python3 "$program.py" --allocator glake --library "$library" "$@")
echo "$free"
cap=$(echo "$free" | python3 -c 'import json, sys; print(json.load(sys.stdin)["requested_mib"] * 105 // 100)')
for allocator in native expandable glake; do
    python3 "$program.py" --allocator $allocator --library "$library" --cap-mib "$cap" "$@"
done
