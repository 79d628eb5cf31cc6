#!/usr/bin/env python3
"""Turns the JSON lines of the example `replay` into a table for docs/results.md.

cargo run --release --example replay -- --json TRACE... | scripts/figures.py
"""
import json
import sys

GIB = 1 << 30


def share(part, whole):
    return f"{100 * part / whole:.2f} %" if whole else "-"


runs = [json.loads(line) for line in sys.stdin]
print(
    "| trace | policy | peak requested GiB | peak physical GiB | utilization | driver time, of wall | "
    "last third | longest allocation, against its bound | host ns per operation | failed |"
)
print("|---|---|---|---|---|---|---|---|---|---|")
for run in runs:
    policy = run["policy"] if run["policy"] == "caching" else f"{run['policy']}, {run['mode']}"
    ns = run.get("ns_per_op_mean")
    print(
        f"| {run['trace']} | {policy} | {run['peak_requested_bytes'] / GIB:.3f} "
        f"| {run['peak_physical_bytes'] / GIB:.3f} | {100 * run['utilization']:.2f} % "
        f"| {run['driver_ms']:.0f} ms, {share(run['driver_ms'], run['wall_ms'])} "
        f"| {run['driver_ms_last_third']:.1f} ms, {share(run['driver_ms_last_third'], run['wall_ms_last_third'])} "
        f"| {run['longest_allocation_ms']:.2f} ms, {run['longest_allocation_over_budget_ms']:+.2f} "
        f"| {'-' if ns is None else round(ns)} | {run['failed_allocations']} |"
    )
if len(runs) > 1:
    mean = sum(run["utilization"] for run in runs) / len(runs)
    last = sum(run["driver_ms_last_third"] for run in runs)
    wall = sum(run["wall_ms_last_third"] for run in runs)
    print(f"\nMean utilization {100 * mean:.2f} %; driver time of the last thirds, pooled, {share(last, wall)}.")
