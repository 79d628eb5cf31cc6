#!/bin/sh
# Runs a bundle made by scripts/gpu-bundle.sh; see there.
#
#   ./run.sh                                                  everything
#   ./run.sh graphs streams threads device_laws device_pool   captured graphs, several streams, threads
#   NO_MEMCHECK=1 ./run.sh [WORD...]                          without compute-sanitizer
#
# What tests print behind "found: " is what the machine does; the report has it.
set -u
cd "$(dirname "$0")"
out=${OUT:-out}
limit=${TIMEOUT_S:-300}
mkdir -p "$out"
export RUST_BACKTRACE=0
: > "$out/summary.txt"
: > "$out/cuda.jsonl"
: > "$out/sim.jsonl"
failed=0

wanted() {
    name=$1
    shift
    [ $# -eq 0 ] && return 0
    for word in "$@"; do
        case $name in *"$word"*) return 0 ;; esac
    done
    return 1
}

# item NAME COMMAND...: runs it, keeps its log, notes PASS or FAIL.
item() {
    name=$1
    shift
    log=$out/$(echo "$name" | tr '/ ' '--').log
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" > "$log" 2>&1
    code=$?
    verdict=PASS
    if [ $code -ne 0 ]; then
        verdict=FAIL
        failed=1
    fi
    counts=$(grep '^test result' "$log" | sed 's/; 0 measured.*//; s/^test result: //')
    echo "$verdict $code $(($(date +%s) - began))s $name $counts" >> "$out/summary.txt"
}

# replayed NAME ARGUMENT...: on the GPU and on the simulator, in both modes.
replayed() {
    trace=$1
    shift
    for mode in default compact; do
        svg=$out/$trace-$mode.svg
        item "replay $trace $mode" ./examples/replay --json --mode $mode --device cuda:0 --svg "$svg" "$@"
        grep '^{' "$log" >> "$out/cuda.jsonl" || continue
        item "replay-sim $trace $mode" ./examples/replay --json --mode $mode "$@"
        grep '^{' "$log" >> "$out/sim.jsonl"
    done
}

# field NAME: that field of each JSON line.
field() {
    sed "s/.*\"$1\":\([^,}]*\).*/\1/; /^{/s/.*/-/; s/\"//g"
}

# by_call FILE: calls and milliseconds of each kind, summed over the lines.
by_call() {
    for object in driver_calls_by_call driver_ms_by_call; do
        sed "s/.*\"$object\":{\([^}]*\)}.*/\1/" "$1" | tr ',' '\n' | tr -d '"' | sed "s/^/$object:/"
    done | awk -F: '
        $1 ~ /calls/ { n[$2] += $3 }
        $1 ~ /_ms_/ { ms[$2] += $3; all += $3 }
        END { for (call in n) printf " %s %d/%.1f", call, n[call], ms[call]; printf " all %.1f\n", all }'
}

nvidia-smi > "$out/nvidia-smi.txt" 2>&1
for path in tests/* examples/* benches/*; do
    [ -x "$path" ] && wanted "$path" "$@" || continue
    case $path in
    tests/*) item "$path" "$path" --test-threads=1 --nocapture ;;
    examples/replay)
        for file in traces/*; do
            base=$(basename "$file" .gz)
            replayed "${base%.csv}" "$file"
        done
        replayed churn --synthetic churn
        ;;
    examples/bandwidth) item "$path" "$path" --device cuda:0 --rounds 3 ;;
    examples/load) item "$path" "$path" --device cuda:0 --verify ;;
    examples/*) item "$path" "$path" ;;
    benches/*) item "$path" "$path" --bench --noplot ;;
    esac
done

# The hook: each trial in a process of its own.
for program in trials/*; do
    for trial in $("$program" --list); do
        wanted "$program $trial" "$@" && item "$program $trial" "$program" "$trial"
    done
    wanted "$program overhead" "$@" && item "$program overhead" "$program" --overhead
done
if wanted pytorch "$@" && python3 -c 'import torch' 2> /dev/null; then
    item pytorch pytorch/compare.sh pytorch/libglake.so "${ROUNDS:-3}"
fi

if command -v compute-sanitizer > /dev/null && [ -z "${NO_MEMCHECK:-}" ]; then
    for path in tests/*; do
        # API errors are what many tests are about; tests that lose the device are memory errors by
        # design; the pool's programs are too long for it.
        case $path in *lost* | *device_pool* | *device_streams*) continue ;; esac
        [ -x "$path" ] && wanted "$path" "$@" || continue
        item "memcheck $path" compute-sanitizer --tool memcheck --report-api-errors no \
            --error-exitcode 99 "$path" --test-threads=1 --nocapture
    done
    for program in trials/*; do
        for trial in $("$program" --list); do
            wanted "$program $trial" "$@" || continue
            item "memcheck $program $trial" compute-sanitizer --tool memcheck --report-api-errors no \
                --error-exitcode 99 "$program" "$trial"
        done
    done
fi

# The short report.
{
    echo "== verdicts"
    grep -v ' replay' "$out/summary.txt"
    grep '^FAIL.* replay' "$out/summary.txt"
    for log in "$out"/*.log; do
        grep '^test .*FAILED$' "$log" | head -9
        grep -H -A2 'panicked at\|^replay: ' "$log" | cut -c1-200 | head -9
    done
    if [ -f "$out/examples-bandwidth.log" ]; then
        echo "== bandwidth"
        cat "$out/examples-bandwidth.log"
    fi
    if [ -f "$out/examples-load.log" ]; then
        echo "== load"
        cat "$out/examples-load.log"
    fi
    if [ -f "$out/examples-gpu_compare.log" ]; then
        echo "== beside the driver's own"
        cat "$out/examples-gpu_compare.log"
    fi
    for log in "$out"/*overhead.log "$out"/pytorch.log; do
        [ -f "$log" ] && echo "== ${log#"$out"/}" && cat "$log"
    done
    for log in "$out"/benches-*.log; do
        [ -f "$log" ] && echo "== ${log#"$out"/}" && grep -B1 'time: ' "$log" | sed 's/Benchmarking.*//' | tr -s ' \n' ' ' \
            | sed 's/ -- /\n/g; s/\] \([a-z]\)/]\n\1/g' && echo
    done
    for log in "$out"/tests-*device_pool.log; do
        [ -f "$log" ] && grep 'gathers under' "$log" | cut -c1-250
    done
    grep -o 'found: .*' "$out"/*tests-*.log 2> /dev/null | sed "s|^$out/||" | cut -c1-300
    if [ -s "$out/cuda.jsonl" ]; then
        echo "== replays: utilization and driver ms on the GPU, then as simulated"
        n=$(wc -l < "$out/cuda.jsonl")
        for i in $(seq 1 "$n"); do
            gpu=$(sed -n "${i}p" "$out/cuda.jsonl")
            sim=$(sed -n "${i}p" "$out/sim.jsonl")
            of() { echo "$1" | field "$2" | cut -c1-8; }
            echo "$(echo "$gpu" | field trace) $(of "$gpu" mode): $(of "$gpu" utilization) $(of "$sim" utilization)" \
                "ms $(of "$gpu" driver_ms) $(of "$sim" driver_ms) ns/op $(of "$gpu" ns_per_op_mean)" \
                "$(of "$sim" ns_per_op_mean) failed $(of "$gpu" failed_allocations)" \
                "pending $(of "$gpu" pending_gathers) corrupted $(of "$gpu" corrupted_words)"
        done
        echo "measured, calls/ms:$(by_call "$out/cuda.jsonl")"
        echo "modelled, calls/ms:$(by_call "$out/sim.jsonl")"
    fi
} > "$out/report.txt" 2>&1
head -c 11000 "$out/report.txt"
exit $failed
