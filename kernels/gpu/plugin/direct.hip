/* SPDX-License-Identifier: MIT
 *
 * direct.hip - GPU memory that a network adapter writes with data from other nodes.
 *
 * The GPU's driver exports the memory as a dma-buf, which the adapter's driver imports. The dma-buf has its own reference to
 * the memory, so memory that is freed here stays while the adapter may still write it.
 *
 * Order. An adapter's writes to a GPU and its completion to the CPU take different ways, so the CPU may see the completion
 * before the GPU would see the data. On some GPUs every kernel that is launched later sees the data all the same. For others
 * the driver has a flush, which must be called in between. If a GPU has neither, its memory is not exported.
 *
 * This file has not been run on hardware yet.
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
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: the driver cannot order an adapter's writes before kernels", GPU_KIND,
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

/* Part of ROCm's runtime since 5.6; HIP has no wrapper for it. */
typedef int hsa_export_function(const void *address, size_t bytes, int *fd, uint64_t *offset);

static int range_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e)
{
    void *runtime = dlopen("libhsa-runtime64.so.1", RTLD_LAZY | RTLD_NOLOAD);
    hsa_export_function *call = runtime ? (hsa_export_function *)dlsym(runtime, "hsa_amd_portable_export_dmabuf") : NULL;
    int status = call ? call((const void *)address, bytes, fd, offset) : 0;

    if (runtime)
        (void)dlclose(runtime); /* HIP keeps its own reference */
    if (!call)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: this ROCm has no dma-buf for its memory", GPU_KIND, gpu);
    return status ? error_set(e, -EOPNOTSUPP, "%s GPU %d: a dma-buf of its memory: HSA status 0x%x", GPU_KIND, gpu, status) : 0;
}

/* Writes over the bus stay in the GPU's host data path (HDP) until it is flushed by this register. GPUs without HDP have no
 * register. */
int writes_flush(int gpu, struct error *e)
{
    volatile unsigned *word = gpus[gpu].data_path;

    (void)e;
    if (word) {
        *word = 1;
        (void)*word; /* the load makes sure that the store has arrived */
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
