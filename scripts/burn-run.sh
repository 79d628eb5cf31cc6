#!/bin/sh
# Runs a bundle made by scripts/burn-bundle.sh: the same program with glake and without, in turns.
#
#   ./run.sh [burn] [burn21]            both, or the ones named
#   ROUNDS=5 STEPS=200 ARGS="--max-batch 24" OUT=out ./run.sh burn
#   BESIDE=0                            without the runs beside them
#   LOAD=1 ./run.sh burn                only loads a file (FILE, which goes) to a module, by glake and as burn does
#   CAPPED=1                            also with little more memory than the tensors have (needs PyTorch, for ballast)
#
# Needs NVRTC and CUDA's headers: a toolkit (nvcc in PATH, or CUDA_PATH), or pip's nvidia packages.
set -eu
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- burn burn21
out=${OUT:-out}
rounds=${ROUNDS:-5}
steps=${STEPS:-200}
mkdir -p "$out"
failed=0

if [ -z "${CUDA_PATH:-}" ] && nvcc=$(command -v nvcc); then
    CUDA_PATH=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
fi
wheel=$(python3 -c 'import nvidia, os; print(next((d for p in nvidia.__path__ for d in [os.path.join(p, "cu13")] if os.path.isdir(d)), ""))' 2>/dev/null || true)
: "${CUDA_PATH:=$wheel}"
export CUDA_PATH
export LD_LIBRARY_PATH="$CUDA_PATH/lib64:$CUDA_PATH/lib:$wheel/lib:${LD_LIBRARY_PATH:-}"

for program in "$@"; do
    [ -x "$program" ] || { xz -dkf "$program.xz" 2>/dev/null || python3 -c "
import lzma, sys
open(sys.argv[1], 'wb').write(lzma.open(sys.argv[1] + '.xz').read())" "$program"; chmod +x "$program"; }
    if [ "${LOAD:-0}" = 1 ]; then
        file=${FILE:-/dev/shm/glake-load.safetensors}
        for glake in off on; do
            echo "load, glake $glake"
            # shellcheck disable=SC2086 # ARGS is meant to be split
            ./"$program" load --file "$file" --glake $glake ${ARGS:-} || failed=1
        done
        rm -f "$file"
        continue
    fi
    json=$out/$program.jsonl
    : > "$json"

    # run NAME ARGUMENT...: one line in the JSON file, all output in a log.
    run() {
        log=$out/$program-$1.log
        shift
        # shellcheck disable=SC2086 # ARGS is meant to be split
        if ! ./"$program" --steps "$steps" --json "$json" ${ARGS:-} "$@" > "$log" 2>&1; then
            echo "FAILED: $program $* (see $log)"
            # Without glake a capped run may fail.
            case $log in *capped-off.log) ;; *) failed=1 ;; esac
            tail -n 5 "$log"
        fi
    }

    round=1
    while [ "$round" -le "$rounds" ]; do
        run "on-tensor-$round" --glake on --granularity tensor
        run "off-page-$round" --glake off --granularity page
        round=$((round + 1))
    done
    # Beside them, once each: cubecl by tensors on the driver's pool, and glake under cubecl's pages.
    if [ "${BESIDE:-1}" = 1 ]; then
        run off-tensor --glake off --granularity tensor --allocator async
        run off-page-async --glake off --granularity page --allocator async
        run on-page --glake on --granularity page
    fi
    python3 - "$json" <<'PYTHON'
import json, statistics, sys

runs = [json.loads(line) for line in open(sys.argv[1])]
kinds = {}
for run in runs:
    args = run["args"]
    allocator = "" if args["glake"] == "on" else f" {args['allocator']}"
    kinds.setdefault(f"glake {args['glake']}, {args['granularity']}{allocator}", []).append(run)

def median(kind, figure):
    values = [figure(run) for run in kinds[kind]]
    return statistics.median(values) if None not in values else None

def mib(number):
    return "-" if number is None else f"{number / 2**20:.0f}"

print(f"{'':30} {'n':>2} {'step ms p50':>11} {'positions/s (least..most)':>32} {'device':>7} {'cubecl':>7} "
      f"{'glake':>7} {'allocated':>9} {'requested':>9}  MiB at the peak")
for kind, some in kinds.items():
    speeds = [run["positions_per_s"] for run in some]
    pool = lambda name: median(kind, lambda run: (run["glake"] or {}).get(name))
    print(f"{kind:30} {len(some):2} {median(kind, lambda run: run['step_ms_p50']):11.2f} "
          f"{statistics.median(speeds):12.0f} ({min(speeds):.0f}..{max(speeds):.0f})".ljust(78),
          f"{mib(median(kind, lambda run: run['device_peak_bytes'])):>7}",
          f"{mib(median(kind, lambda run: run['cubecl_reserved_peak_bytes'])):>7}",
          f"{mib(pool('reserved_peak_bytes')):>7} {mib(pool('allocated_peak_bytes')):>9}",
          f"{mib(pool('requested_peak_bytes')):>9}")

on, off = "glake on, tensor", "glake off, page sync"
if on in kinds and off in kinds:
    memory = median(on, lambda run: run["device_peak_bytes"]) / median(off, lambda run: run["device_peak_bytes"])
    speed = median(on, lambda run: run["positions_per_s"]) / median(off, lambda run: run["positions_per_s"])
    print(f"glake by tensors / cubecl as it comes: memory {memory:.3f} (bar 0.85), speed {speed:.3f} (bar 1.00)")
hashes = {run["loss_hash"] for run in runs}
print("losses", "bit-equal in all runs" if len(hashes) == 1 else f"DIFFER: {sorted(hashes)}",
      f"({runs[0]['loss_first']:.4f} -> {runs[0]['loss_last']:.4f})" if runs else "")
requested = max((run["glake"]["requested_peak_bytes"] for run in kinds.get(on, [])), default=0)
open(sys.argv[1] + ".requested", "w").write(str(requested))
passed_on = sum((run["glake"] or {}).get("n_passed_on", 0) for run in runs)
print(f"allocations passed on to the driver: {passed_on}")
PYTHON

    # Little more memory than the tensors have: 1.05 of the most that was requested. Another process holds the
    # rest of the device; 700 MiB are left for the program's context and kernels.
    if [ "${CAPPED:-0}" = 1 ]; then
        python3 - "$json.requested" <<'PYTHON' > "$out/ballast.txt" 2>&1 &
import sys, time, torch

free, _ = torch.cuda.mem_get_info()
ballast = torch.empty(free - int(open(sys.argv[1]).read()) * 105 // 100 - (700 << 20), dtype=torch.uint8, device="cuda")
print("left:", torch.cuda.mem_get_info()[0], flush=True)
time.sleep(600)
PYTHON
        ballast=$!
        until grep -qs left "$out/ballast.txt" || ! kill -0 $ballast 2>/dev/null; do sleep 1; done
        cat "$out/ballast.txt"
        if grep -qs left "$out/ballast.txt"; then
            echo "capped, without glake:"
            run capped-off --glake off --granularity page
            echo "capped, with glake:"
            run capped-on --glake on --granularity tensor
            tail -n 1 "$json" | grep -o '"loss_hash": *"[0-9a-f]*"\|"device_peak_bytes": *[0-9]*' || true
        else
            echo "not capped: no ballast" >&2
        fi
        kill $ballast 2>/dev/null || true
    fi
done
exit $failed
