/* SPDX-License-Identifier: MIT
 *
 * driver.h - the functions of a GPU's driver that libfccclient uses: CUDA's driver API, or HIP. The driver is loaded when a
 * communicator turns out to be on such a GPU; its library and headers are not needed otherwise. So prototypes, constants and
 * layouts are declared here, as in cuda.h (11.4 to 13) and hip_runtime_api.h (5.2 to 7), with each library's names beside
 * them. A device address is a uint64_t (CUdeviceptr; HIP's void * is passed the same way), a stream a void *, a result an int
 * with 0 for success.
 */
#ifndef FCC_CLIENT_DEVICE_DRIVER_H
#define FCC_CLIENT_DEVICE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fccclient.h"

enum driver_constant {
    DRIVER_INVALID_VALUE = 1,         /* CUDA_ERROR_INVALID_VALUE, hipErrorInvalidValue */
    DRIVER_OUT_OF_MEMORY = 2,         /* CUDA_ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory */
    DRIVER_HANDLE_FD = 1,             /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, hipMemHandleTypePosixFileDescriptor */
    DRIVER_ALLOCATION_PINNED = 1,     /* CU_MEM_ALLOCATION_TYPE_PINNED, hipMemAllocationTypePinned */
    DRIVER_GRANULARITY_MINIMUM = 0,   /* CU_MEM_ALLOC_GRANULARITY_MINIMUM, hipMemAllocationGranularityMinimum */
    DRIVER_LOCATION_DEVICE = 1,       /* CU_MEM_LOCATION_TYPE_DEVICE, hipMemLocationTypeDevice */
    DRIVER_ACCESS_READWRITE = 3,      /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE, hipMemAccessFlagsProtReadWrite */
    DRIVER_HOST_PORTABLE = 1,         /* CU_MEMHOSTREGISTER_PORTABLE, hipHostRegisterPortable */
    DRIVER_HOST_MAPPED = 2,           /* CU_MEMHOSTREGISTER_DEVICEMAP, hipHostRegisterMapped */
    DRIVER_STREAM_OWN_ORDER = 1,      /* CU_STREAM_NON_BLOCKING, hipStreamNonBlocking: not ordered with the default stream */
    DRIVER_WAIT_REACHED = 0,          /* CU_STREAM_WAIT_VALUE_GEQ, hipStreamWaitValueGte */
    DRIVER_NOT_CAPTURING = 0,         /* CU_STREAM_CAPTURE_STATUS_NONE, hipStreamCaptureStatusNone */
    DRIVER_CAPTURING = 1,             /* CU_STREAM_CAPTURE_STATUS_ACTIVE */
    DRIVER_CAPTURE_RELAXED = 2,       /* CU_STREAM_CAPTURE_MODE_RELAXED */
    DRIVER_OBJECT_UNSYNCHRONIZED = 1, /* CU_USER_OBJECT_NO_DESTRUCTOR_SYNC */
    DRIVER_OBJECT_MOVE = 1,           /* CU_GRAPH_USER_OBJECT_MOVE */
    DRIVER_BATCH_WAIT = 1,            /* CU_STREAM_MEM_OP_WAIT_VALUE_32 */
    DRIVER_BATCH_WRITE = 2,           /* CU_STREAM_MEM_OP_WRITE_VALUE_32 */
};

struct driver_uuid { /* CUuuid, hipUUID */
    unsigned char bytes[16];
};
struct driver_allocation { /* CUmemAllocationProp, hipMemAllocationProp */
    int type, handles;
    int location_type, location_device;
    void *none;
    unsigned char zeros[8]; /* flags */
};
struct driver_access { /* CUmemAccessDesc, hipMemAccessDesc */
    int location_type, location_device;
    int flags;
};
struct driver_ipc_handle { /* CUipcMemHandle, hipIpcMemHandle_t */
    char reserved[64];
};
struct driver_operation { /* CUstreamBatchMemOpParams, for a write or a wait */
    int operation, zero;
    uint64_t address;
    uint64_t value; /* the lower half */
    unsigned flags, zeros[5];
};

/* X(result, member, CUDA's name, HIP's name, parameters). NULL: the driver has no such function, and others are used. */
#define DRIVER_FUNCTIONS(X) DRIVER_COMMON(X) DRIVER_CUDA(X) DRIVER_HIP(X)
#define DRIVER_COMMON(X)                                                                                                       \
    X(int, init, "cuInit", "hipInit", (unsigned flags))                                                                        \
    X(int, device_count, "cuDeviceGetCount", "hipGetDeviceCount", (int *count))                                                \
    X(int, device_get, "cuDeviceGet", "hipDeviceGet", (int *device, int ordinal))                                              \
    X(int, device_uuid, "cuDeviceGetUuid_v2", "hipDeviceGetUuid", (struct driver_uuid * uuid, int device))                     \
    X(int, device_attribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute", (int *value, int attribute, int device))         \
    X(int, synchronize, "cuCtxSynchronize", "hipDeviceSynchronize", (void))                                                    \
    X(int, memory_import, "cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle",                                 \
      (uint64_t * handle, void *from, int type))                                                                               \
    X(int, memory_release, "cuMemRelease", "hipMemRelease", (uint64_t handle))                                                 \
    X(int, memory_retain, "cuMemRetainAllocationHandle", "hipMemRetainAllocationHandle", (uint64_t * handle, void *memory))    \
    X(int, memory_granularity, "cuMemGetAllocationGranularity", "hipMemGetAllocationGranularity",                              \
      (size_t * bytes, const struct driver_allocation *what, int option))                                                      \
    X(int, address_reserve, "cuMemAddressReserve", "hipMemAddressReserve",                                                     \
      (uint64_t * address, size_t bytes, size_t alignment, uint64_t wish, unsigned long long flags))                           \
    X(int, address_free, "cuMemAddressFree", "hipMemAddressFree", (uint64_t address, size_t bytes))                            \
    X(int, memory_map, "cuMemMap", "hipMemMap",                                                                                \
      (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))                              \
    X(int, memory_unmap, "cuMemUnmap", "hipMemUnmap", (uint64_t address, size_t bytes))                                        \
    X(int, memory_access, "cuMemSetAccess", "hipMemSetAccess",                                                                 \
      (uint64_t address, size_t bytes, const struct driver_access *access, size_t count))                                      \
    X(int, ipc_open, "cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle",                                                           \
      (uint64_t * address, struct driver_ipc_handle handle, unsigned flags))                                                   \
    X(int, ipc_close, "cuIpcCloseMemHandle", "hipIpcCloseMemHandle", (uint64_t address))                                       \
    X(int, host_register, "cuMemHostRegister_v2", "hipHostRegister", (void *memory, size_t bytes, unsigned flags))             \
    X(int, host_unregister, "cuMemHostUnregister", "hipHostUnregister", (void *memory))                                        \
    X(int, host_address, "cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer",                                            \
      (uint64_t * address, void *memory, unsigned flags))                                                                      \
    X(int, copy_in, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", (uint64_t to, const void *from, size_t bytes, void *stream)) \
    X(int, copy_out, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (void *to, uint64_t from, size_t bytes, void *stream))      \
    X(int, stream_create, "cuStreamCreate", "hipStreamCreateWithFlags", (void **stream, unsigned flags))                       \
    X(int, stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy", (void *stream))                                           \
    X(int, stream_synchronize, "cuStreamSynchronize", "hipStreamSynchronize", (void *stream))                                  \
    X(int, stream_capturing, "cuStreamIsCapturing", "hipStreamIsCapturing", (void *stream, int *status))                       \
    X(int, stream_fill, "cuMemsetD32Async", "hipMemsetD32Async", (uint64_t to, uint32_t value, size_t count, void *stream))    \
    X(int, stream_write, "cuStreamWriteValue32_v2", "hipStreamWriteValue32",                                                   \
      (void *stream, uint64_t address, uint32_t value, unsigned flags))
/* CUDA: a thread has a stack of current contexts. */
#define DRIVER_CUDA(X)                                                                                                         \
    X(int, context_retain, "cuDevicePrimaryCtxRetain", NULL, (void **context, int device))                                     \
    X(int, context_release, "cuDevicePrimaryCtxRelease_v2", NULL, (int device))                                                \
    X(int, context_push, "cuCtxPushCurrent_v2", NULL, (void *context))                                                         \
    X(int, context_pop, "cuCtxPopCurrent_v2", NULL, (void **context))                                                          \
    X(int, capture_mode, "cuThreadExchangeStreamCaptureMode", NULL, (int *mode))                                               \
    X(int, stream_capture, "cuStreamGetCaptureInfo_v2", NULL,                                                                  \
      (void *stream, int *status, uint64_t *number, void **graph, const void **dependencies, size_t *ndependencies))           \
    X(int, object_create, "cuUserObjectCreate", NULL,                                                                          \
      (void **object, void *argument, void (*destroy)(void *), unsigned references, unsigned flags))                           \
    X(int, object_release, "cuUserObjectRelease", NULL, (void *object, unsigned references))                                   \
    X(int, graph_retain, "cuGraphRetainUserObject", NULL, (void *graph, void *object, unsigned references, unsigned flags))    \
    X(int, stream_wait, "cuStreamWaitValue32_v2", NULL, (void *stream, uint64_t address, uint32_t value, unsigned flags))      \
    X(int, stream_batch, "cuStreamBatchMemOp_v2", NULL,                                                                        \
      (void *stream, unsigned count, struct driver_operation *operations, unsigned flags))                                     \
    X(int, stream_function, "cuLaunchHostFunc", NULL, (void *stream, void (*function)(void *), void *argument))                \
    X(int, error_name, "cuGetErrorName", NULL, (int result, const char **text))                                                \
    X(int, error_text, "cuGetErrorString", NULL, (int result, const char **text))
/* HIP: a thread has a current device. (hipLaunchHostFunc is in the header of 5.2, but not in its library.) */
#define DRIVER_HIP(X)                                                                                                          \
    X(int, runtime_version, NULL, "hipRuntimeGetVersion", (int *version))                                                      \
    X(int, device_set, NULL, "hipSetDevice", (int device))                                                                     \
    X(int, device_current, NULL, "hipGetDevice", (int *device))                                                                \
    X(int, stream_wait_masked, NULL, "hipStreamWaitValue32",                                                                   \
      (void *stream, uint64_t address, uint32_t value, unsigned flags, uint32_t mask))                                         \
    X(int, stream_callback, NULL, "hipStreamAddCallback",                                                                      \
      (void *stream, void (*function)(void *stream, int status, void *argument), void *argument, unsigned flags))              \
    X(const char *, result_name, NULL, "hipGetErrorName", (int result))                                                        \
    X(const char *, result_text, NULL, "hipGetErrorString", (int result))

enum driver_function {
#define X(result, member, cuda, hip, parameters) DRIVER_##member,
    DRIVER_FUNCTIONS(X)
#undef X
        DRIVER_FUNCTION_COUNT
};

struct driver {
    enum fcc_device_kind kind;
    const char *name;               /* "cuda", "hip" */
    const char *visible;            /* the environment variable that says which GPUs this process sees */
    const char *const libraries[4]; /* file names of the library, the preferred first */
    /* The attribute of a device that can use stream_write and stream_wait on registered host memory:
     * CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS (32 bits then, too), hipDeviceAttributeCanUseStreamWaitValue */
    int stream_attribute;
    int major_attribute;   /* of a device's major version: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR; 0: nobody asks */
    bool waits_cyclically; /* stream_wait compares (int32_t)(word - value) >= 0; if false, word >= value, unsigned */
    void *library;         /* NULL: not loaded yet */
#define X(result, member, cuda, hip, parameters) result(*member) parameters;
    DRIVER_FUNCTIONS(X)
#undef X
};

/* Loads the driver of a kind of GPU, once per process. -ENODEV with the reason. */
int driver_load(enum fcc_device_kind kind, const struct driver **out);
const char *driver_function_name(const struct driver *d, enum driver_function f);
/* Writes the driver's name and text for a result: "NAME (words)". */
void driver_explain(const struct driver *d, int result, char *text, size_t room);

#endif
