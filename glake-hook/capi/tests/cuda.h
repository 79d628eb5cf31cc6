/* What of the driver the programs call. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long CUdeviceptr;
typedef void *CUhandle;

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(CUhandle *, int);
extern int cuCtxSetCurrent(CUhandle);
extern int cuCtxSynchronize(void);
extern int cuMemAlloc_v2(CUdeviceptr *, size_t);
extern int cuMemFree_v2(CUdeviceptr);
extern int cuMemAllocAsync(CUdeviceptr *, size_t, CUhandle);
extern int cuMemFreeAsync(CUdeviceptr, CUhandle);
extern int cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
extern int cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
extern int cuStreamCreate(CUhandle *, unsigned);
extern int cuStreamBeginCapture_v2(CUhandle, int);
extern int cuStreamEndCapture(CUhandle, CUhandle *);
extern uint64_t glake_standin_allocations(void);
extern uint64_t glake_standin_calls(const char *);

#define CHECK(call) do { int code = (call); if (code) { printf("%s: %d\n", #call, code); exit(1); } } while (0)
