/* libglake.so: glake's pool of GPU memory for C and C++, and for PyTorch's pluggable allocator.
 *
 * Every function may be called from any thread. The first call installs the pool, set up by the
 * environment: GLAKE_POOL_MODE, GLAKE_POOL_LIMIT and the others that glake-hook names. Streams are
 * CUstream or cudaStream_t; 0 is the legacy default stream of the device.
 *
 * A program that is linked to libcuda.so.1 needs no call at all:
 *     LD_PRELOAD=libglake.so program
 */
#ifndef GLAKE_H
#define GLAKE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes and counts of a device's pool; requested <= allocated <= reserved. */
typedef struct glake_stats {
    uint64_t requested_bytes;      /* live, as asked for */
    uint64_t allocated_bytes;      /* live, rounding included */
    uint64_t reserved_bytes;       /* physical memory held */
    uint64_t peak_requested_bytes;
    uint64_t peak_allocated_bytes;
    uint64_t peak_reserved_bytes;
    uint64_t n_live;
    uint64_t n_allocations;
    uint64_t n_frees;
    uint64_t n_stitches;           /* gathers of free memory into one run */
} glake_stats;

/* Installs the pool now. 0, or -1 with the reason in glake_error(). */
int glake_install(void);

/* Why the last call of this thread failed; "" if none did. Valid until the thread's next call. */
const char *glake_error(void);

/* `size` bytes for work on `stream`, aligned to 512; NULL for size 0. Without memory it returns
 * NULL; in a process with PyTorch it throws a c10::Error with the figures, which Python sees as a
 * RuntimeError. */
void *glake_malloc(ssize_t size, int device, void *stream);

/* Frees memory behind the work of `stream`; `size` and `device` are not looked at. NULL is nothing. */
void glake_free(void *ptr, ssize_t size, int device, void *stream);

/* Tells that work on `stream` uses the memory, beside the stream that it was allocated on. */
void glake_record_stream(void *ptr, void *stream);

/* Figures of a device; all zero before its first allocation. 0, or -1. */
int glake_get_stats(int device, glake_stats *stats);

/* Gives memory back until at most `keep_bytes` are reserved. Bytes given back, or -1. */
int64_t glake_trim(int device, uint64_t keep_bytes);

/* The most physical bytes that the pool may hold from now on. 0, or -1. */
int glake_limit(int device, uint64_t limit_bytes);

/* Whether the memory is the pool's: 1 or 0. */
int glake_owns(const void *ptr);

/* Writes what is allocated and freed to a trace until glake_record_end. 0, or -1. */
int glake_record(int device, const char *path);
int glake_record_end(void);

#ifdef __cplusplus
}
#endif

#endif
