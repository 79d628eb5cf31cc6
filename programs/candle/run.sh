#!/bin/sh
# Runs a bundle made by scripts/candle-bundle.sh on a machine with a GPU: each program with and without
# glake, in turn.
#
#   ./run.sh [WORD...]     all, or what has one of the words in its name: check, train-f32,
#                          train-bf16, generate-bf16, load, capped
#
# FILE_BYTES (8GiB) is how large the checkpoint is that `load` reads, in FOLDER (/dev/shm/glake-load), which goes.
# ROUNDS (5) is how often each runs; ARGUMENTS goes to all. OUT (out/) takes a line of JSON for each run
# and the logs; a table is printed.
set -u
cd "$(dirname "$0")"
out=${OUT:-out}
rounds=${ROUNDS:-5}
mkdir -p "$out"
failed=0
: > "$out/runs.jsonl"
: > "$out/log.txt"

# The libraries of CUDA, where pip or a toolkit has put them.
folders=""
for library in libcublas.so.13 libcurand.so.10 libcudart.so.13; do
    ldconfig -p | grep -q "$library" && continue
    file=$(find / \( -path /proc -o -path /sys \) -prune -o -name "$library" -print 2> /dev/null | head -n 1)
    if [ -n "$file" ]; then folders="$folders:$(dirname "$file")"; else echo "$library was not found" >&2; fi
done
export LD_LIBRARY_PATH="${folders#:}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

wanted() {
    item=$1
    shift
    [ $# -eq 0 ] && return 0
    for word in "$@"; do
        case $item in *"$word"*) return 0 ;; esac
    done
    return 1
}

# run NAME ARGUMENT...: one line of JSON with the name in it, or the error in the log.
run() {
    label=$1
    shift
    # shellcheck disable=SC2086 # the list is meant to be split
    if line=$(./glake-candle-programs "$@" ${ARGUMENTS:-} --json 2>> "$out/log.txt"); then
        echo "{\"name\":\"$label\",${line#\{}" >> "$out/runs.jsonl"
    else
        echo "{\"name\":\"$label\",\"failed\":\"$*\"}" >> "$out/runs.jsonl"
        # Without glake a capped run may fail.
        case $label in *capped-off) ;; *) failed=1 ;; esac
    fi
}

nvidia-smi > "$out/nvidia-smi.txt" 2>&1
if wanted check "$@"; then
    ./glake-candle-programs check > "$out/check.txt" 2>&1 || failed=1
    cat "$out/check.txt"
fi
for program in "train f32" "train bf16" "generate bf16"; do
    name=$(echo "$program" | tr ' ' '-')
    wanted "$name" "$@" || continue
    for _ in $(seq "$rounds"); do
        for glake in off on; do run "$name" "${program% *}" --dtype "${program#* }" --glake $glake; done
    done
done

# A checkpoint from the page cache, by candle and by glake in turns; its lines of JSON are in load.jsonl.
if wanted load "$@"; then
    folder=${FOLDER:-/dev/shm/glake-load}
    : > "$out/load.jsonl"
    for glake in off on off on; do
        # shellcheck disable=SC2086 # the list is meant to be split
        ./glake-candle-programs load --dtype bf16 --file-bytes "${FILE_BYTES:-8GiB}" --dir "$folder" --glake $glake \
            ${ARGUMENTS:-} --json 2>> "$out/log.txt" | tee -a "$out/load.jsonl"
    done
    [ "$(wc -l < "$out/load.jsonl")" -eq 4 ] || failed=1
    rm -rf "$folder"
fi

# Little more memory than the tensors have: 1.05 of the most that was requested.
if wanted capped "$@"; then
    for program in "train f32" "train bf16"; do
        name=$(echo "$program" | tr ' ' '-')
        cap=$(python3 table.py --cap "$name" "$out/runs.jsonl")
        [ -n "$cap" ] || { run "$name" "${program% *}" --dtype "${program#* }" --glake on
            cap=$(python3 table.py --cap "$name" "$out/runs.jsonl"); }
        [ -n "$cap" ] || continue
        for glake in off on; do
            run "$name-capped-$glake" "${program% *}" --dtype "${program#* }" --glake $glake --cap-bytes "$cap"
        done
    done
fi

[ -s "$out/runs.jsonl" ] && python3 table.py "$out/runs.jsonl" | tee "$out/table.txt"
tail -n 20 "$out/log.txt"
exit $failed
