#!/bin/sh
# Runs a bundle made by scripts/gpu-bundle.sh; see there.
set -u
cd "$(dirname "$0")"
out=${OUT:-out}
limit=${TIMEOUT_S:-120}
mkdir -p "$out"
: > "$out/summary.txt"
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
    timeout -k 10 "$limit" "$@" > "$log" 2>&1
    code=$?
    verdict=PASS
    if [ $code -ne 0 ]; then
        verdict=FAIL
        failed=1
    fi
    counts=$(grep '^test result' "$log" | sed 's/; 0 measured.*//; s/^test result: //')
    echo "$verdict $code $name $counts" | tee -a "$out/summary.txt"
}

nvidia-smi > "$out/nvidia-smi.txt" 2>&1
for path in tests/* examples/* benches/*; do
    [ -x "$path" ] && wanted "$path" "$@" || continue
    case $path in
    tests/*) item "$path" "$path" --test-threads=1 ;;
    examples/replay)
        for trace in traces/*; do
            item "replay $trace" "$path" --device cuda:0 --svg "$out/$(basename "$trace").svg" "$trace"
        done
        ;;
    examples/*) item "$path" "$path" ;;
    benches/*) item "$path" "$path" --bench --noplot ;;
    esac
done

if command -v compute-sanitizer > /dev/null; then
    for path in tests/*; do
        # API errors are what many tests are about; tests that lose the device are memory errors by design.
        case $path in *lost*) continue ;; esac
        [ -x "$path" ] && wanted "$path" "$@" || continue
        item "memcheck $path" compute-sanitizer --tool memcheck --report-api-errors no \
            --error-exitcode 99 "$path" --test-threads=1
    done
fi
exit $failed
