/* A program that is linked to the driver and knows nothing of glake. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long CUdeviceptr;
typedef void *CUhandle;

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(CUhandle *, int);
extern int cuCtxSetCurrent(CUhandle);
extern int cuMemAlloc_v2(CUdeviceptr *, size_t);
extern int cuMemFree_v2(CUdeviceptr);
extern int cuMemAllocAsync(CUdeviceptr *, size_t, CUhandle);
extern int cuMemFreeAsync(CUdeviceptr, CUhandle);
extern int cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
extern int cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
extern int cuCtxSynchronize(void);
extern uint64_t glake_standin_calls(const char *);

#define CHECK(call) do { int code = (call); if (code) { printf("%s: %d\n", #call, code); return 1; } } while (0)

int main(void) {
    CUhandle context;
    CUdeviceptr a, b;
    char back[1000] = {0};
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&a, 1000));
    CHECK(cuMemAllocAsync(&b, 5 << 20, 0));
    CHECK(cuMemcpyHtoD_v2(a, "glake", 6));
    CHECK(cuMemcpyDtoH_v2(back, a, 6));
    CHECK(strcmp(back, "glake"));
    CHECK(cuMemFreeAsync(b, 0));
    CHECK(cuMemFree_v2(a));
    CHECK(cuCtxSynchronize());
    printf("%d calls of the driver's allocator\n",
        (int)(glake_standin_calls("cuMemAlloc_v2") + glake_standin_calls("cuMemAllocAsync")
            + glake_standin_calls("cuMemFree_v2") + glake_standin_calls("cuMemFreeAsync")));
    return 0;
}
