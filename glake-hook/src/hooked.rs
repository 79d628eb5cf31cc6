// The functions of the driver that are hooked, in the order of the shim's table. Read by the crate and by
// the shim, each of which says with a macro of its own what is to be done with the names.
macro_rules! hooked {
    ($what:ident) => {
        $what! {
            cuMemAlloc_v2
            cuMemAllocPitch_v2
            cuMemFree_v2
            cuMemAllocAsync
            cuMemAllocAsync_ptsz
            cuMemAllocFromPoolAsync
            cuMemAllocFromPoolAsync_ptsz
            cuMemFreeAsync
            cuMemFreeAsync_ptsz
            cuMemPoolCreate
            cuMemPoolDestroy
            cuMemPoolSetAccess
            cuDeviceSetMemPool
            cuMemcpy
            cuMemcpy_ptds
            cuMemcpyAsync
            cuMemcpyAsync_ptsz
            cuMemcpyHtoD_v2
            cuMemcpyHtoD_v2_ptds
            cuMemcpyHtoDAsync_v2
            cuMemcpyHtoDAsync_v2_ptsz
            cuMemcpyDtoH_v2
            cuMemcpyDtoH_v2_ptds
            cuMemcpyDtoHAsync_v2
            cuMemcpyDtoHAsync_v2_ptsz
            cuMemHostAlloc
            cuMemAllocHost_v2
            cuMemFreeHost
            cuMemGetInfo_v2
            cuMemGetAddressRange_v2
            cuCtxEnablePeerAccess
            cuIpcGetMemHandle
            cuGetProcAddress
            cuGetProcAddress_v2
            cuCtxSynchronize
            cuStreamDestroy_v2
            cuStreamBeginCapture_v2
            cuStreamBeginCapture_v2_ptsz
            cuStreamBeginCaptureToGraph
            cuStreamBeginCaptureToGraph_ptsz
            cuStreamEndCapture
            cuStreamEndCapture_ptsz
        }
    };
}
