#!/usr/bin/env python3
"""Makes a table of the runs of run.sh, for docs/results.md.

table.py RUNS.jsonl
table.py --cap NAME RUNS.jsonl    1.05 of the most bytes that the runs of that name requested
"""
import json
import statistics
import sys

GIB = 1 << 30


def peak_requested(runs, name):
    return max((run.get("peak_requested_bytes", 0) for run in runs if run["name"] == name), default=0)


def load(path):
    runs = [json.loads(line) for line in open(path)]
    for run in runs:
        run.update(run.pop("memory", None) or {})
    return runs


def middle(runs, field):
    values = [run[field] for run in runs if run.get(field) is not None]
    return statistics.median(values) if values else float("nan")


def row(name, glake, runs, hashes):
    times = [run["step_ms_mean"] for run in runs]
    gib = lambda field: f"{middle(runs, field) / GIB:.3f}"
    return (
        f"| {name} | {glake} | {len(runs)} | {statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f}) "
        f"| {middle(runs, 'step_ms_p50'):.2f} | {middle(runs, 'tokens_per_s'):.0f} "
        f"| {gib('peak_requested_bytes')} | {gib('peak_allocated_bytes')} | {gib('peak_reserved_bytes')} "
        f"| {gib('peak_device_bytes')} | {' '.join(sorted(hashes))} |"
    )


def main():
    if sys.argv[1] == "--cap":
        requested = peak_requested(load(sys.argv[3]), sys.argv[2])
        print(int(requested * 1.05) if requested else "")
        return
    runs = load(sys.argv[1])
    print(
        "| program | glake | runs | ms per step (spread) | median step | tokens/s | requested GiB | allocated GiB "
        "| reserved GiB | of device GiB | hashes |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    verdicts = []
    for name in dict.fromkeys(run["name"] for run in runs):
        done = [run for run in runs if run["name"] == name and "failed" not in run]
        by_glake = {word: [run for run in done if run["glake"] is is_on] for word, is_on in [("off", False), ("on", True)]}
        for word, those in by_glake.items():
            if those:
                print(row(name, word, those, {run["hash"] for run in those}))
        off, on = by_glake["off"], by_glake["on"]
        n_failed = sum("failed" in run for run in runs if run["name"] == name)
        if n_failed:
            verdicts.append(f"{name}: {n_failed} FAILED")
        if off and on:
            equal = len({run["hash"] for run in off + on}) == 1
            speed = middle(on, "tokens_per_s") / middle(off, "tokens_per_s")
            reserved = middle(on, "peak_reserved_bytes") / middle(off, "peak_reserved_bytes")
            device = middle(on, "peak_device_bytes") / max(middle(off, "peak_device_bytes"), 1)
            verdicts.append(
                f"{name}: results {'equal to the bit' if equal else 'DIFFER'}, throughput {speed:.3f}x, "
                f"reserved {reserved:.3f}x, of device {device:.3f}x"
            )
        if on:
            run = on[-1]
            verdicts.append(
                f"{name}: {run['n_allocations']} allocations, {run['n_misses']} misses, {run['n_stitches']} stitches; "
                f"live at the end {run['live_bytes']}; to the driver {run['n_passed_on']} of {run['passed_on_bytes']} bytes"
            )
    print("\n" + "\n".join(verdicts))


main()
