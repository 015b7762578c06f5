/* SPDX-License-Identifier: MIT
 *
 * runtime.h - the GPU runtime's host calls, in HIP's spelling. Under nvcc they become CUDA's: those of the runtime by name;
 * virtual memory and stream memory operations, which only CUDA's driver has, through entry points that are asked for at run
 * time, so that cuda.so loads on a machine without a driver and can say so.
 */
#ifndef FCC_KERNELS_GPU_RUNTIME_H
#define FCC_KERNELS_GPU_RUNTIME_H

#include <string.h>

#include "kernels/gpu/platform.h"

#if defined(__CUDACC__)
#include <cuda.h>

#define hipDeviceProp_t cudaDeviceProp
#define hipError_t cudaError_t
#define hipStream_t cudaStream_t
#define hipSuccess cudaSuccess
#define hipErrorNotReady cudaErrorNotReady
#define hipErrorInsufficientDriver cudaErrorInsufficientDriver
#define hipErrorMemoryAllocation cudaErrorMemoryAllocation
#define hipErrorNoDevice cudaErrorNoDevice
#define hipErrorNotSupported cudaErrorNotSupported
#define hipGetErrorString cudaGetErrorString
#define hipGetLastError cudaGetLastError
#define hipGetDeviceCount cudaGetDeviceCount
#define hipGetDeviceProperties cudaGetDeviceProperties
#define hipDeviceGetPCIBusId cudaDeviceGetPCIBusId
#define hipDeviceCanAccessPeer cudaDeviceCanAccessPeer
#define hipDeviceEnablePeerAccess cudaDeviceEnablePeerAccess
#define hipErrorPeerAccessAlreadyEnabled cudaErrorPeerAccessAlreadyEnabled
#define hipSetDevice cudaSetDevice
#define hipFree cudaFree
#define hipMalloc cudaMalloc
#define hipMallocAsync cudaMallocAsync
#define hipFreeAsync cudaFreeAsync
#define hipMemPool_t cudaMemPool_t
#define hipDeviceGetDefaultMemPool cudaDeviceGetDefaultMemPool
#define hipMemPoolSetAttribute cudaMemPoolSetAttribute
#define hipMemPoolAttrReleaseThreshold cudaMemPoolAttrReleaseThreshold
#define hipMemsetAsync cudaMemsetAsync
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpy2DAsync cudaMemcpy2DAsync
#define hipMemset2DAsync cudaMemset2DAsync
#define hipEvent_t cudaEvent_t
#define hipEventCreateWithFlags cudaEventCreateWithFlags
#define hipEventDisableTiming cudaEventDisableTiming
#define hipEventDestroy cudaEventDestroy
#define hipEventRecord cudaEventRecord
#define hipStreamWaitEvent cudaStreamWaitEvent
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define hipHostRegister cudaHostRegister
#define hipHostRegisterPortable cudaHostRegisterPortable
#define hipHostRegisterMapped cudaHostRegisterMapped
#define hipHostUnregister cudaHostUnregister
#define hipHostGetDevicePointer cudaHostGetDevicePointer
#define hipHostMalloc cudaHostAlloc
#define hipHostMallocMapped cudaHostAllocMapped
#define hipHostMallocPortable cudaHostAllocPortable
#define hipHostFree cudaFreeHost
#define hipStreamCreateWithFlags cudaStreamCreateWithFlags
#define hipStreamNonBlocking cudaStreamNonBlocking
#define hipStreamCreateWithPriority cudaStreamCreateWithPriority
#define hipDeviceGetStreamPriorityRange cudaDeviceGetStreamPriorityRange
#define hipMemcpyDeviceToDevice cudaMemcpyDeviceToDevice
#define hipStreamDestroy cudaStreamDestroy
#define hipStreamSynchronize cudaStreamSynchronize
#define hipStreamQuery cudaStreamQuery
#define hipLaunchKernel cudaLaunchKernel
#define hipFuncSetAttribute cudaFuncSetAttribute
#define hipFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize
#define hipOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxActiveBlocksPerMultiprocessor
#define hipDriverGetVersion cudaDriverGetVersion
#define hipModule_t CUmodule
#define hipFunction_t CUfunction
#define HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
#define hipIpcMemHandle_t cudaIpcMemHandle_t
#define hipIpcGetMemHandle cudaIpcGetMemHandle

#define hipMemGenericAllocationHandle_t CUmemGenericAllocationHandle
#define hipMemAllocationProp CUmemAllocationProp
#define hipMemAccessDesc CUmemAccessDesc
#define hipMemAllocationTypePinned CU_MEM_ALLOCATION_TYPE_PINNED
#define hipMemHandleTypePosixFileDescriptor CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define hipMemLocationTypeDevice CU_MEM_LOCATION_TYPE_DEVICE
#define hipMemAccessFlagsProtReadWrite CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define hipMemAllocationGranularityMinimum CU_MEM_ALLOC_GRANULARITY_MINIMUM
#define requestedHandleType requestedHandleTypes

/* X(name after "cu", name in HIP, parameters) */
#define GPU_DRIVER_CALLS(X)                                                                                                    \
    X(MemCreate, hipMemCreate,                                                                                                 \
      (CUmemGenericAllocationHandle * h, size_t n, const CUmemAllocationProp *p, unsigned long long f), (h, n, p, f))          \
    X(MemRelease, hipMemRelease, (CUmemGenericAllocationHandle h), (h))                                                        \
    X(MemGetAllocationGranularity, hipMemGetAllocationGranularity,                                                             \
      (size_t * n, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags f), (n, p, f))                               \
    X(MemRetainAllocationHandle, hipMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *at), (out, at))      \
    X(MemExportToShareableHandle, hipMemExportToShareableHandle,                                                               \
      (void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType t, unsigned long long f), (out, h, t, f))          \
    X(StreamBatchMemOp, driver_stream_batch, (CUstream s, unsigned n, CUstreamBatchMemOpParams *p, unsigned f), (s, n, p, f))  \
    X(StreamWriteValue64, driver_stream_write, (CUstream s, CUdeviceptr at, cuuint64_t v, unsigned f), (s, at, v, f))          \
    X(MemAddressReserve, driver_address_reserve,                                                                               \
      (CUdeviceptr * out, size_t n, size_t align, CUdeviceptr at, unsigned long long f), (out, n, align, at, f))               \
    X(MemAddressFree, driver_address_free, (CUdeviceptr at, size_t n), (at, n))                                                \
    X(MemMap, driver_map, (CUdeviceptr at, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long f),     \
      (at, n, offset, h, f))                                                                                                   \
    X(MemUnmap, driver_unmap, (CUdeviceptr at, size_t n), (at, n))                                                             \
    X(MemSetAccess, driver_set_access, (CUdeviceptr at, size_t n, const CUmemAccessDesc *d, size_t count), (at, n, d, count))  \
    X(TensorMapEncodeTiled, driver_tensor_map,                                                                                 \
      (CUtensorMap * map, CUtensorMapDataType type, cuuint32_t rank, void *at, const cuuint64_t *sizes,                        \
       const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,            \
       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill),                            \
      (map, type, rank, at, sizes, strides, box, steps, interleave, swizzle, promotion, fill))                                 \
    X(MemGetHandleForAddressRange, driver_range_handle,                                                                        \
      (void *out, CUdeviceptr at, size_t n, CUmemRangeHandleType t, unsigned long long f), (out, at, n, t, f))                 \
    X(FlushGPUDirectRDMAWrites, driver_writes_flush, (CUflushGPUDirectRDMAWritesTarget t, CUflushGPUDirectRDMAWritesScope s),  \
      (t, s))                                                                                                                  \
    X(ModuleLoadData, hipModuleLoadData, (CUmodule * module, const void *image), (module, image))                              \
    X(ModuleUnload, hipModuleUnload, (CUmodule module), (module))                                                              \
    X(ModuleGetFunction, hipModuleGetFunction, (CUfunction * out, CUmodule module, const char *name), (out, module, name))     \
    X(OccupancyMaxActiveBlocksPerMultiprocessor, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,                           \
      (int *out, CUfunction f, int threads, size_t shared_bytes), (out, f, threads, shared_bytes))                             \
    X(FuncGetAttribute, hipFuncGetAttribute, (int *out, CUfunction_attribute a, CUfunction f), (out, a, f))                    \
    X(LaunchKernelEx, driver_launch, (const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra),             \
      (config, f, arguments, extra))                                                                                           \
    X(DeviceGetAttribute, driver_attribute, (int *out, CUdevice_attribute a, CUdevice d), (out, a, d))

/* The entry point, as this version of CUDA has it; NULL if the driver lacks it or there is no driver. */
template <typename Function> static Function driver_entry(const char *name, unsigned version = 12000)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;

    if (cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found) ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return (Function)entry;
}

/* The driver's error numbers are the runtime's. */
#define X(name, hip_name, parameters, arguments)                                                                               \
    static inline cudaError_t hip_name parameters                                                                              \
    {                                                                                                                          \
        typedef CUresult(*function) parameters;                                                                                \
        static const function call = driver_entry<function>("cu" #name);                                                       \
        return call ? (cudaError_t)call arguments : cudaErrorNotSupported;                                                     \
    }
GPU_DRIVER_CALLS(X)
#undef X

/* Makes the copy engine's map of a matrix of f16 or bf16, in boxes of 64 elements x `box` rows. False: the copy engine cannot
 * read the matrix. */
static inline bool driver_matrix_map(CUtensorMap *map, bool is_f16, uint64_t at, int64_t cols, int64_t rows, int64_t stride,
                                     uint32_t box)
{
    cuuint64_t sizes[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, pitch = (cuuint64_t)stride * 2;
    cuuint32_t boxes[2] = {64, box}, every[2] = {1, 1};

    return at % 16 == 0 && pitch % 16 == 0 && pitch > 0 && cols > 0 && rows > 0 &&
           driver_tensor_map(map, is_f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)at,
                             sizes, &pitch, boxes, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == cudaSuccess;
}

static inline cudaError_t hipMemAddressReserve(void **out, size_t n, size_t align, void *at, unsigned long long f)
{
    return driver_address_reserve((CUdeviceptr *)out, n, align, (CUdeviceptr)at, f);
}

static inline cudaError_t hipMemAddressFree(void *at, size_t n)
{
    return driver_address_free((CUdeviceptr)at, n);
}

static inline cudaError_t hipMemMap(void *at, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long f)
{
    return driver_map((CUdeviceptr)at, n, offset, h, f);
}

static inline cudaError_t hipMemUnmap(void *at, size_t n)
{
    return driver_unmap((CUdeviceptr)at, n);
}

static inline cudaError_t hipMemSetAccess(void *at, size_t n, const CUmemAccessDesc *d, size_t count)
{
    return driver_set_access((CUdeviceptr)at, n, d, count);
}

static inline cudaError_t hipStreamWriteValue64(cudaStream_t stream, void *at, uint64_t value, unsigned flags)
{
    return driver_stream_write(stream, (CUdeviceptr)at, value, flags);
}

/* Clusters of so many workgroups that fit at the same time on the current device: one that did not would begin when others have
 * left. */
static inline uint32_t gpu_clusters_resident(const void *function, unsigned threads, size_t shared_bytes, unsigned cluster)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int clusters = 0;

    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3(cluster);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&clusters, function, &config) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (uint32_t)clusters;
}
#endif

/* ---- what has no common spelling ---- */

/* Let the stream wait until each of the words has reached its value, one after the other. */
static inline hipError_t gpu_stream_await(hipStream_t stream, const uint64_t words[], const uint32_t values[], int n)
{
    hipError_t status = hipSuccess;
#if defined(__CUDACC__)
    CUstreamBatchMemOpParams all[16]; /* a call of the driver, and what it gives to the GPU, cost more than a wait in it */
    const int most = sizeof(all) / sizeof(all[0]);

    for (int done = 0; done < n && status == hipSuccess; done += most) {
        int now = n - done < most ? n - done : most;
        memset(all, 0, sizeof(all));
        for (int i = 0; i < now; i++) {
            all[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
            all[i].waitValue.address = (CUdeviceptr)words[done + i];
            all[i].waitValue.value = values[done + i];
            all[i].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
        }
        status = driver_stream_batch(stream, (unsigned)now, all, 0);
    }
#else
    for (int i = 0; i < n && status == hipSuccess; i++)
        status = hipStreamWaitValue32(stream, (void *)words[i], values[i], hipStreamWaitValueGte);
#endif
    return status;
}

/* Can a kernel be launched behind one that has not ended? Then it says gpu_follow(). */
#if defined(__CUDACC__)
#define GPU_FOLLOWS(properties) ((properties).major >= 9)
#else
#define GPU_FOLLOWS(properties) false
#endif

/* Can such a launch be captured into a graph, with its order? */
static inline bool gpu_graphs_follow()
{
#if defined(__CUDACC__)
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
#else
    return false;
#endif
}

/* `follows`: its workgroups come as soon as those of the kernel before have left, not after its end, which takes more than a
 * microsecond longer. Nothing is gained behind anything but a kernel, and nothing lost. */
static inline hipError_t gpu_kernel_launch(const void *function, uint32_t workgroups, uint32_t threads, void *arguments[],
                                           size_t shared_bytes, hipStream_t stream, bool follows, uint32_t cluster = 1)
{
#if defined(__CUDACC__)
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(workgroups);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = cluster > 1 ? attributes : attributes + 1;
    config.numAttrs = (cluster > 1) + follows;
    return cudaLaunchKernelExC(&config, function, arguments);
#else
    (void)follows;
    (void)cluster; /* 1: there are none */
    return hipLaunchKernel(function, dim3(workgroups), dim3(threads), arguments, shared_bytes, stream);
#endif
}

/* The same of a kernel that was loaded at run time. */
static inline hipError_t gpu_function_launch(const void *function, uint32_t workgroups, uint32_t threads, void *arguments[],
                                             size_t shared_bytes, hipStream_t stream, bool follows)
{
#if defined(__CUDACC__)
    CUlaunchAttribute attribute = {};
    CUlaunchConfig config = {};

    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    config.gridDimX = workgroups;
    config.blockDimX = threads;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = (unsigned)shared_bytes;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = follows;
    return driver_launch(&config, (CUfunction)function, arguments, NULL);
#else
    (void)follows;
    return hipModuleLaunchKernel((hipFunction_t)function, workgroups, 1, 1, threads, 1, 1, (unsigned)shared_bytes, stream,
                                 arguments, NULL);
#endif
}

/* 1 if streams can wait for words in memory. */
static inline int gpu_stream_waits(int gpu)
{
    int yes = 0;
#if defined(__CUDACC__)
    return driver_attribute(&yes, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu) == cudaSuccess && yes;
#else
    return hipDeviceGetAttribute(&yes, hipDeviceAttributeCanUseStreamWaitValue, gpu) == hipSuccess && yes;
#endif
}

/* 0 if memory that is shared by a file descriptor cannot be made; otherwise it is tried. */
static inline int gpu_shares_fds(int gpu)
{
#if defined(__CUDACC__)
    int yes = 0;
    return driver_attribute(&yes, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, gpu) == cudaSuccess && yes;
#else
    (void)gpu;
    return 1; /* HIP 5.2 has no attribute for it */
#endif
}

/* 1 if the words may lie in the memory of GPUs, of any that can address each other, and in memory that both processes have by a
 * file descriptor: what lies there outlives the process that made it. HIP promises waits for memory of its own kind only
 * (hipMallocSignalMemory), which is not made by its virtual memory: there words stay in the host's. */
static inline int gpu_words_in_memory(int gpu)
{
#if defined(__CUDACC__)
    return gpu_shares_fds(gpu);
#else
    (void)gpu;
    return 0;
#endif
}

/* The kind of link between two GPUs that can address each other. */
static inline const char *gpu_link_name(int from, int to)
{
#if defined(__CUDACC__)
    int atomics = 0; /* through NVLink, not through PCIe */
    (void)cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to);
    return atomics ? "NVLink" : "PCIe";
#else
    uint32_t type = 0, hops = 0;
    if (hipExtGetLinkTypeAndHopCount(from, to, &type, &hops) != hipSuccess)
        return "PCIe";
    return type == 4 ? "xGMI" : "PCIe"; /* HSA_AMD_LINK_INFO_TYPE_XGMI */
#endif
}

static inline void gpu_uuid(int gpu, unsigned char out[16])
{
#if defined(__CUDACC__)
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, gpu) == cudaSuccess)
        memcpy(out, properties.uuid.bytes, 16);
#else
    hipUUID uuid;
    if (hipDeviceGetUuid(&uuid, gpu) == hipSuccess)
        memcpy(out, uuid.bytes, 16);
#endif
}

#endif
