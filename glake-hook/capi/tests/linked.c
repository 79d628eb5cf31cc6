/* A program that is linked to the driver and knows nothing of glake. */
#include "cuda.h"

#include <string.h>

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
