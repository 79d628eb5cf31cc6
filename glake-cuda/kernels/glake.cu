// The device side of glake's DeviceOps: see glake-core/src/driver.rs for what each must do.
// Built into glake.ptx by scripts/build-ptx.sh. Every parameter is a 64-bit word, so that the
// host can launch all kernels in one way. Grids may have any size; loops stride over the work.

typedef unsigned long long u64;
typedef unsigned char u8;

// How many words check_pattern found wrong, in all.
__device__ u64 glake_mismatches = 0;

struct Piece {
    u64 dst, src, bytes;
};

// Loads and stores of data that is not touched again soon: the caches keep what others use.
template <typename W>
__device__ W take(const W *from) { return __ldcs(from); }
template <typename W>
__device__ void put(W *to, W word) { __stcs(to, word); }

// Words that one thread of a copy has in flight.
constexpr u64 N_WORDS = 4;

// Copies `bytes` bytes as words of type W where both ends are aligned alike, thread `at` of `n`.
// A block moves one run of neighbouring words per turn, so that the grid as a whole walks through
// few pages at a time.
template <typename W>
__device__ void copy_words(u64 dst, u64 src, u64 bytes, u64 at, u64 n) {
    u64 head = (sizeof(W) - (dst & (sizeof(W) - 1))) & (sizeof(W) - 1);
    if (head > bytes) head = bytes;
    u64 words = (bytes - head) / sizeof(W);
    u64 tail = head + words * sizeof(W);
    for (u64 i = at; i < head; i += n) ((u8 *)dst)[i] = ((const u8 *)src)[i];
    for (u64 i = tail + at; i < bytes; i += n) ((u8 *)dst)[i] = ((const u8 *)src)[i];
    W *to = (W *)(dst + head);
    const W *from = (const W *)(src + head);
    const u64 threads = blockDim.x;
    u64 i = (u64)blockIdx.x * threads * N_WORDS + threadIdx.x;
    for (; i + (N_WORDS - 1) * threads < words; i += n * N_WORDS) {
        W a = take(from + i), b = take(from + i + threads);
        W c = take(from + i + 2 * threads), d = take(from + i + 3 * threads);
        put(to + i, a);
        put(to + i + threads, b);
        put(to + i + 2 * threads, c);
        put(to + i + 3 * threads, d);
    }
    // At most one turn is left: the next one is behind the end for every thread.
    for (u64 k = 0; k < N_WORDS && i < words; k++, i += threads) put(to + i, take(from + i));
}

__device__ void copy_bytes(u64 dst, u64 src, u64 bytes, u64 at, u64 n) {
    u64 skew = dst ^ src;
    if ((skew & 15) == 0) copy_words<uint4>(dst, src, bytes, at, n);
    else if ((skew & 7) == 0) copy_words<u64>(dst, src, bytes, at, n);
    else if ((skew & 3) == 0) copy_words<unsigned>(dst, src, bytes, at, n);
    else copy_words<u8>(dst, src, bytes, at, n);
}

__device__ bool differ(uint4 a, uint4 b) {
    return ((a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w)) != 0;
}
__device__ bool differ(u64 a, u64 b) { return a != b; }
__device__ bool differ(unsigned a, unsigned b) { return a != b; }
__device__ bool differ(u8 a, u8 b) { return a != b; }

template <typename W>
__device__ bool any_differs(u64 a, u64 b, u64 bytes, u64 at, u64 n) {
    u64 head = (sizeof(W) - (a & (sizeof(W) - 1))) & (sizeof(W) - 1);
    if (head > bytes) head = bytes;
    u64 words = (bytes - head) / sizeof(W);
    u64 tail = head + words * sizeof(W);
    bool wrong = false;
    for (u64 i = at; i < head; i += n) wrong |= ((const u8 *)a)[i] != ((const u8 *)b)[i];
    for (u64 i = tail + at; i < bytes; i += n) wrong |= ((const u8 *)a)[i] != ((const u8 *)b)[i];
    const W *left = (const W *)(a + head);
    const W *right = (const W *)(b + head);
    for (u64 i = at; i < words; i += n) wrong |= differ(left[i], right[i]);
    return wrong;
}

__device__ u64 pattern_word(u64 seed, u64 index) {
    u64 x = seed ^ (index * 0x9e3779b97f4a7c15ull);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ u64 thread_at() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ u64 n_threads() { return (u64)gridDim.x * blockDim.x; }

extern "C" __global__ void __launch_bounds__(256, 8) glake_copy(u64 dst, u64 src, u64 bytes) {
    copy_bytes(dst, src, bytes, thread_at(), n_threads());
}

// One row of blocks per piece; rows stride over the pieces.
extern "C" __global__ void glake_gather(const Piece *pieces, u64 n) {
    for (u64 p = blockIdx.y; p < n; p += gridDim.y) {
        copy_bytes(pieces[p].dst, pieces[p].src, pieces[p].bytes, thread_at(), n_threads());
    }
}

// Sets *found to 1 if the ranges differ. `found` may lie in pinned host memory.
extern "C" __global__ void glake_compare(u64 a, u64 b, u64 bytes, volatile u64 *found) {
    u64 skew = a ^ b, at = thread_at(), n = n_threads();
    bool wrong;
    if ((skew & 15) == 0) wrong = any_differs<uint4>(a, b, bytes, at, n);
    else if ((skew & 7) == 0) wrong = any_differs<u64>(a, b, bytes, at, n);
    else if ((skew & 3) == 0) wrong = any_differs<unsigned>(a, b, bytes, at, n);
    else wrong = any_differs<u8>(a, b, bytes, at, n);
    if (wrong) *found = 1;
}

extern "C" __global__ void glake_fill_pattern(u64 *words, u64 n, u64 seed) {
    for (u64 i = thread_at(); i < n; i += n_threads()) words[i] = pattern_word(seed, i);
}

extern "C" __global__ void glake_check_pattern(const u64 *words, u64 n, u64 seed) {
    u64 wrong = 0;
    for (u64 i = thread_at(); i < n; i += n_threads()) wrong += words[i] != pattern_word(seed, i);
    if (wrong) atomicAdd(&glake_mismatches, wrong);
}

__device__ u64 now_ns() {
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// Launched with one thread.
extern "C" __global__ void glake_delay(u64 ns) {
    u64 start = now_ns();
    while (now_ns() - start < ns) __nanosleep(500);
}
