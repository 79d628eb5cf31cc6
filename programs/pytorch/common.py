"""What the training scripts share: the choice of the allocator, and what is printed at the end."""

import argparse
import ctypes
import hashlib
import json
import os
import struct
import time


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--allocator", choices=["native", "expandable", "glake"], default="glake")
    parser.add_argument("--library", default="libglake.so", help="where libglake.so lies")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--warm-up", type=int, default=20, help="steps that the time leaves out")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cap-mib", type=int, help="the most memory that the allocator may hold")
    parser.add_argument("--record", help="write glake's allocations to this trace, gzip if it ends in .gz")
    return parser.parse_args()


class Stats(ctypes.Structure):
    """As in glake.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "requested_bytes allocated_bytes reserved_bytes peak_requested_bytes peak_allocated_bytes "
            "peak_reserved_bytes n_live n_allocations n_frees n_stitches"
        ).split()
    ]


def done(options, code):
    """Raises what the library says of a call that failed."""
    if code != 0:
        library = ctypes.CDLL(options.library)
        library.glake_error.restype = ctypes.c_char_p
        raise RuntimeError(library.glake_error().decode())


def start(options):
    """Imports torch with the allocator in place."""
    if options.allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    if options.allocator == "glake":
        glake = torch.cuda.memory.CUDAPluggableAllocator(options.library, "glake_malloc", "glake_free")
        torch.cuda.memory.change_current_allocator(glake)
        record = ctypes.CDLL(options.library).glake_record_stream
        glake.allocator().set_record_stream_fn(ctypes.cast(record, ctypes.c_void_p).value)
    if options.cap_mib and options.allocator == "glake":
        done(options, ctypes.CDLL(options.library).glake_limit(0, ctypes.c_uint64(options.cap_mib << 20)))
    elif options.cap_mib:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction((options.cap_mib << 20) / total)
    if options.record:
        done(options, ctypes.CDLL(options.library).glake_record(0, options.record.encode()))
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    return torch


def peaks(torch, options):
    """The most that was requested and reserved, in bytes."""
    if options.allocator == "glake":
        library = ctypes.CDLL(options.library)
        stats = Stats()
        done(options, library.glake_get_stats(torch.cuda.current_device(), ctypes.byref(stats)))
        return stats.peak_requested_bytes, stats.peak_reserved_bytes
    stats = torch.cuda.memory_stats()
    return stats["requested_bytes.all.peak"], stats["reserved_bytes.all.peak"]


def run(name, options, torch, step):
    """Calls `step(i)`, which returns a loss, and prints one line of JSON."""
    used = lambda: (lambda free, total: total - free)(*torch.cuda.mem_get_info())
    torch.cuda.synchronize()
    before = used()
    losses, times, most = [], [], 0
    failed = None
    for i in range(options.steps):
        began = time.perf_counter()
        try:
            loss = step(i)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if "out of memory" not in str(error):
                raise
            failed = i
            break
        losses.append(loss.item())  # waits for the device
        times.append(time.perf_counter() - began)
        most = max(most, used())
    if options.record:
        done(options, ctypes.CDLL(options.library).glake_record_end())
    requested, reserved = peaks(torch, options)
    timed = sorted(times[options.warm_up :] or [0])
    mib = 1 << 20
    print(
        json.dumps(
            {
                "program": name,
                "allocator": options.allocator,
                "steps": options.steps,
                "ms_per_step": round(1000 * sum(timed) / len(timed), 3),
                "ms_p50": round(1000 * timed[len(timed) // 2], 3),
                "requested_mib": requested // mib,
                "reserved_mib": reserved // mib,
                "device_mib": (most - before) // mib,
                "out_of_memory_at_step": failed,
                "last_loss": losses[-1] if losses else None,
                "losses": hashlib.sha256(struct.pack(f"{len(losses)}d", *losses)).hexdigest()[:16],
            }
        )
    )
