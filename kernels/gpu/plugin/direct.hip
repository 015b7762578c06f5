/* SPDX-License-Identifier: MIT
 *
 * direct.hip - memory of GPUs that other devices write: an adapter that brings what comes from other nodes.
 *
 * The driver gives out a dma-buf for it, which the adapter's driver takes. It has its own reference on the memory, so what is freed here
 * stays while the adapter may still write.
 *
 * Order. An adapter's writes to a GPU and its word to the CPU that they are done go different ways, so the CPU may hear of them before
 * the GPU would see them. Some GPUs see them all the same, in every kernel that is launched later; for others the driver has a flush,
 * that is to be called between. Where there is neither nothing is given out.
 *
 * It has run on no machine yet.
 */
#include <dlfcn.h>
#include <unistd.h>

#include "kernels/gpu/plugin/inside.h"

#if defined(__CUDACC__)
static int attribute_of(int gpu, CUdevice_attribute attribute)
{
    int value = 0;

    return driver_attribute(&value, attribute, gpu) == cudaSuccess ? value : 0;
}

static bool orders_by_itself(int gpu)
{
    return attribute_of(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

void direct_allow(int gpu, hipMemAllocationProp *properties)
{
    properties->allocFlags.gpuDirectRDMACapable =
        (unsigned char)(attribute_of(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0);
}

static int range_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e)
{
    int options = attribute_of(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);

    if (!attribute_of(gpu, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED))
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: the driver has no dma-buf for it (it takes the open kernel modules)",
                         GPU_KIND, gpu);
    if (!orders_by_itself(gpu) && !(options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: the driver cannot say when it sees what an adapter has written", GPU_KIND,
                         gpu);
    hipError_t status = hipSetDevice(gpu);
    if (status == hipSuccess)
        status = driver_range_handle(fd, (CUdeviceptr)address, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (status != hipSuccess)
        return gpu_error(e, gpu, "a dma-buf of its memory", status);
    *offset = 0;
    return 0;
}

int writes_flush(int gpu, struct error *e)
{
    if (orders_by_itself(gpu))
        return 0;
    hipError_t status = hipSetDevice(gpu);
    if (status == hipSuccess)
        status =
            driver_writes_flush(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "what an adapter has written", status);
}
#else
void direct_allow(int gpu, hipMemAllocationProp *properties)
{
    (void)gpu, (void)properties;
}

/* ROCm's runtime has it since 5.6; HIP has no name for it. */
typedef int hsa_export_function(const void *address, size_t bytes, int *fd, uint64_t *offset);

static int range_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e)
{
    void *runtime = dlopen("libhsa-runtime64.so.1", RTLD_LAZY | RTLD_NOLOAD);
    hsa_export_function *call = runtime ? (hsa_export_function *)dlsym(runtime, "hsa_amd_portable_export_dmabuf") : NULL;
    int status = call ? call((const void *)address, bytes, fd, offset) : 0;

    if (runtime)
        (void)dlclose(runtime); /* once more than HIP has opened it */
    if (!call)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: this ROCm has no dma-buf for its memory", GPU_KIND, gpu);
    return status ? error_set(e, -EOPNOTSUPP, "%s GPU %d: a dma-buf of its memory: HSA status 0x%x", GPU_KIND, gpu, status) : 0;
}

/* What comes over the bus waits in the GPU's host data path until that is told to let it go; GPUs that have none have no such word. */
int writes_flush(int gpu, struct error *e)
{
    volatile unsigned *word = gpus[gpu].data_path;

    (void)e;
    if (word) {
        *word = 1;
        (void)*word; /* the store has come there */
    }
    return 0;
}
#endif

int memory_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (address % page || bytes % page)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: a dma-buf of memory that is not whole pages", GPU_KIND, gpu);
    return range_export(gpu, address, bytes, fd, offset, e);
}
