/* A program whose threads call the driver first all at once, and last when they end; it does so itself when it
 * exits, and in a fork. */
#include "cuda.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_THREADS 8
/* The calling thread's own stream. */
#define OWN ((CUhandle)2)
#define NON_BLOCKING 1
#define RELAXED 2

static CUhandle context;
static CUdeviceptr late;
static pthread_barrier_t all;
static pthread_key_t key;

static void pair(size_t bytes) {
    CUdeviceptr a;
    CHECK(cuMemAlloc_v2(&a, bytes));
    CHECK(cuMemFree_v2(a));
}

static void thread_ends(void *kept) {
    CUdeviceptr a;
    CHECK(cuMemFreeAsync((CUdeviceptr)(uintptr_t)kept, OWN));
    CHECK(cuMemAllocAsync(&a, 3 << 20, OWN));
    CHECK(cuMemFreeAsync(a, OWN));
}

static void *work(void *unused) {
    CUdeviceptr a;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&all);
    for (int i = 0; i < 100; i++) {
        CHECK(cuMemAllocAsync(&a, 1000 + i * 8000, OWN));
        pair(5000);
        CHECK(cuMemFreeAsync(a, OWN));
    }
    CHECK(cuMemAllocAsync(&a, 1000, OWN));
    pthread_setspecific(key, (void *)(uintptr_t)a);
    return unused;
}

static void at_exit(void) {
    CHECK(cuMemFree_v2(late));
    pair(100 << 10);
    printf("%d allocations of the driver's\n", (int)glake_standin_allocations());
}

__attribute__((destructor)) static void at_the_end(void) { pair(4 << 20); }

int main(void) {
    pthread_t threads[N_THREADS];
    CUhandle captured, graph;
    int status;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(atexit(at_exit));
    CHECK(pthread_key_create(&key, thread_ends));
    CHECK(pthread_barrier_init(&all, NULL, N_THREADS));
    for (int is_captured = 0; is_captured <= 1; is_captured++) {
        if (is_captured) CHECK(cuStreamCreate(&captured, NON_BLOCKING));
        if (is_captured) CHECK(cuStreamBeginCapture_v2(captured, RELAXED));
        for (int i = 0; i < N_THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, NULL));
        for (int i = 0; i < N_THREADS; i++) CHECK(pthread_join(threads[i], NULL));
        if (is_captured) CHECK(cuStreamEndCapture(captured, &graph));
    }
    CHECK(cuMemAlloc_v2(&late, 7000));
    pid_t child = fork();
    if (child == 0) {
        pair(1000);
        /* No memory of the pool's: it is of no use here. */
        _exit(glake_standin_allocations() == 1 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) != child);
    CHECK(status);
    return 0;
}
