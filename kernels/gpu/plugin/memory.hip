/* SPDX-License-Identifier: MIT
 *
 * memory.hip - memory that clients import, and host memory that GPUs access.
 *
 * An allocation is virtual memory with a file descriptor as its shareable handle, mapped once in this process for all open GPUs
 * that can reach it. If the driver does not support that, it is an ordinary allocation with an IPC handle, and other GPUs use
 * peer access. Both are zeroed here, whatever the driver promises.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/gpu/plugin/inside.h"

#define BLOCK_BYTES (2u << 20)

/* All allocations, to map them to GPUs that are opened later. */
static struct gpu_memory *known;
static size_t nknown, room;

static int known_add(const struct gpu_memory *m, struct error *e)
{
    if (nknown == room) {
        size_t more = room ? 2 * room : 64;
        struct gpu_memory *grown = (struct gpu_memory *)realloc(known, more * sizeof(*known));
        if (!grown)
            return error_set(e, -ENOMEM, "%s GPU %d: no memory for an allocation's description", GPU_KIND, m->gpu);
        known = grown;
        room = more;
    }
    known[nknown++] = *m;
    return 0;
}

static void known_remove(uint64_t address)
{
    for (size_t i = 0; i < nknown; i++) {
        if (known[i].address == address) {
            known[i] = known[--nknown];
            return;
        }
    }
}

/* ---- virtual memory ---- */

/* Lets those open GPUs of the mask that can reach m access it. */
static hipError_t access_set(const struct gpu_memory *m, uint32_t mask)
{
    hipMemAccessDesc access[GPU_MAX_GPUS];
    uint32_t peers = gpu_peers(m->gpu) & mask;
    size_t n = 0;

    memset(access, 0, sizeof(access));
    for (int g = 0; g < GPU_MAX_GPUS; g++) {
        if (!(peers & 1u << g) || !gpus[g].open)
            continue;
        access[n].location.type = hipMemLocationTypeDevice;
        access[n].location.id = g;
        access[n++].flags = hipMemAccessFlagsProtReadWrite;
    }
    return n ? hipMemSetAccess((void *)m->address, m->bytes, access, n) : hipSuccess;
}

static hipError_t virtual_map(struct gpu_memory *m, hipMemGenericAllocationHandle_t handle)
{
    void *at = NULL;
    hipError_t status = hipMemAddressReserve(&at, m->bytes, 0, NULL, 0);

    if (status != hipSuccess)
        return status;
    status = hipMemMap(at, m->bytes, 0, handle, 0);
    if (status == hipSuccess) {
        m->address = (uint64_t)at;
        status = access_set(m, ~0u);
        if (status != hipSuccess)
            (void)hipMemUnmap(at, m->bytes);
    }
    if (status != hipSuccess)
        (void)hipMemAddressFree(at, m->bytes);
    return status;
}

static hipError_t virtual_alloc(int gpu, uint64_t bytes, struct gpu_memory *m, int *fd)
{
    hipMemAllocationProp properties;
    hipMemGenericAllocationHandle_t handle;
    size_t granularity = 0;
    int shared = -1;

    memset(&properties, 0, sizeof(properties));
    properties.type = hipMemAllocationTypePinned;
    properties.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
    properties.location.type = hipMemLocationTypeDevice;
    properties.location.id = gpu;
    direct_allow(gpu, &properties);
    hipError_t status = hipMemGetAllocationGranularity(&granularity, &properties, hipMemAllocationGranularityMinimum);
    if (status != hipSuccess)
        return status;
    m->bytes = (bytes + granularity - 1) / granularity * granularity;
    m->kind = FCC_MEMORY_GPU_FD;
    status = hipMemCreate(&handle, m->bytes, &properties, 0);
    if (status != hipSuccess)
        return status;
    status = virtual_map(m, handle);
    if (status == hipSuccess && fd) {
        status = hipMemExportToShareableHandle(&shared, handle, hipMemHandleTypePosixFileDescriptor, 0);
        if (status == hipSuccess) {
            *fd = shared;
        } else {
            (void)hipMemUnmap((void *)m->address, m->bytes);
            (void)hipMemAddressFree((void *)m->address, m->bytes);
        }
    }
    /* The mapping keeps a reference to the memory. */
    (void)hipMemRelease(handle);
    return status;
}

int memory_share(const struct gpu_memory *m, int *fd, struct error *e)
{
    hipMemGenericAllocationHandle_t handle;
    int shared = -1;

    if (m->kind != FCC_MEMORY_GPU_FD)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: its memory is not shared by file descriptors", GPU_KIND, m->gpu);
    hipError_t status = hipMemRetainAllocationHandle(&handle, (void *)m->address);
    if (status == hipSuccess) {
        status = hipMemExportToShareableHandle(&shared, handle, hipMemHandleTypePosixFileDescriptor, 0);
        (void)hipMemRelease(handle);
    }
    if (status != hipSuccess)
        return gpu_error(e, m->gpu, "a descriptor of memory", status);
    *fd = shared;
    return 0;
}

/* ---- ordinary memory ---- */

/* Puts the IPC handle into a sealed memfd, so that clients get a descriptor for either kind of memory. */
static int handle_to_fd(const hipIpcMemHandle_t *handle)
{
    int fd = memfd_create("fccd-ipc-handle", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (write(fd, handle, sizeof(*handle)) != (ssize_t)sizeof(*handle) ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static hipError_t ordinary_alloc(int gpu, uint64_t bytes, struct gpu_memory *m, int *fd)
{
    hipIpcMemHandle_t handle;
    void *at = NULL;

    (void)gpu;
    /* Allocate whole blocks: the runtime puts several small allocations into one block, and an IPC handle shares the whole
     * block. */
    m->bytes = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    m->kind = FCC_MEMORY_GPU_IPC;
    hipError_t status = hipMalloc(&at, m->bytes);
    if (status != hipSuccess)
        return status;
    if (fd) {
        status = hipIpcGetMemHandle(&handle, at);
        *fd = status == hipSuccess ? handle_to_fd(&handle) : -1;
        if (*fd < 0) {
            (void)hipFree(at);
            return status == hipSuccess ? hipErrorMemoryAllocation : status;
        }
    }
    m->address = (uint64_t)at;
    return hipSuccess;
}

/* Enables peer access, by which GPUs access each other's ordinary allocations. It is a property of the contexts. */
static int peers_open(uint32_t mask, struct error *e)
{
    for (int a = 0; a < GPU_MAX_GPUS; a++) {
        for (int b = 0; b < GPU_MAX_GPUS; b++) {
            if (a == b || !gpus[a].open || !gpus[b].open || !((mask >> a | mask >> b) & 1u) || !(gpu_peers(b) & 1u << a))
                continue;
            hipError_t status = hipSetDevice(a);
            if (status == hipSuccess)
                status = hipDeviceEnablePeerAccess(b, 0);
            if (status != hipSuccess && status != hipErrorPeerAccessAlreadyEnabled)
                return gpu_error(e, a, "enabling peer access", status);
            (void)hipGetLastError();
        }
    }
    return 0;
}

/* ---- the plug-in's functions ---- */

int memory_open(uint32_t opened, struct error *e)
{
    bool any_ordinary = false;

    for (int g = 0; g < GPU_MAX_GPUS; g++)
        any_ordinary |= gpus[g].open && (gpus_share_by_ipc || !gpu_shares_fds(g));
    for (size_t i = 0; i < nknown; i++) {
        any_ordinary |= known[i].kind == FCC_MEMORY_GPU_IPC;
        hipError_t status = known[i].kind == FCC_MEMORY_GPU_FD ? access_set(&known[i], opened) : hipSuccess;
        if (status != hipSuccess)
            return gpu_error(e, known[i].gpu, "letting another GPU use its memory", status);
    }
    return any_ordinary ? peers_open(opened, e) : 0;
}

int memory_alloc(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e)
{
    struct gpu_memory m;
    char what[64];

    memset(&m, 0, sizeof(m));
    m.gpu = gpu;
    (void)snprintf(what, sizeof(what), "allocating %llu bytes", (unsigned long long)bytes);
    hipError_t status = hipSetDevice(gpu);
    if (status == hipSuccess)
        status = !gpus_share_by_ipc && gpu_shares_fds(gpu) ? virtual_alloc(gpu, bytes, &m, fd) : hipErrorNotSupported;
    if (status == hipErrorNotSupported) {
        status = ordinary_alloc(gpu, bytes, &m, fd);
        if (status == hipSuccess && peers_open(~0u, e)) {
            (void)hipFree((void *)m.address);
            if (fd)
                (void)close(*fd);
            return e ? e->status : -EIO;
        }
    }
    if (status != hipSuccess)
        return gpu_error(e, gpu, what, status);
    int result = known_add(&m, e);
    if (result == 0)
        result = memory_zero(gpu, m.address, m.bytes, e);
    if (result) {
        if (fd)
            (void)close(*fd);
        memory_free(&m);
        return result;
    }
    *out = m;
    return 0;
}

void memory_free(struct gpu_memory *m)
{
    known_remove(m->address);
    if (hipSetDevice(m->gpu) != hipSuccess)
        return;
    if (m->kind == FCC_MEMORY_GPU_FD) {
        (void)hipMemUnmap((void *)m->address, m->bytes);
        (void)hipMemAddressFree((void *)m->address, m->bytes);
    } else {
        (void)hipFree((void *)m->address);
    }
}

static int side_finish(int gpu, const char *what, hipError_t status, struct error *e)
{
    if (status == hipSuccess)
        status = hipStreamSynchronize(gpus[gpu].side);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, what, status);
}

int memory_zero(int gpu, uint64_t at, uint64_t bytes, struct error *e)
{
    hipError_t status = hipSetDevice(gpu);

    if (status == hipSuccess)
        status = hipMemsetAsync((void *)at, 0, bytes, gpus[gpu].side);
    return side_finish(gpu, "zeroing memory", status, e);
}

int memory_copy(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e)
{
    hipError_t status = hipSetDevice(gpu);

    if (status == hipSuccess)
        status = hipMemcpyAsync(to, (const void *)from, bytes, hipMemcpyDeviceToHost, gpus[gpu].side);
    return side_finish(gpu, "copying from it", status, e);
}

int memory_write(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e)
{
    hipError_t status = hipSetDevice(gpu);

    if (status == hipSuccess)
        status = hipMemcpyAsync((void *)to, from, bytes, hipMemcpyHostToDevice, gpus[gpu].side);
    return side_finish(gpu, "copying to it", status, e);
}

int word_store(int gpu, uint64_t address, uint64_t value, struct error *e)
{
    hipError_t status = hipSetDevice(gpu);

    if (status == hipSuccess)
        status = hipStreamWriteValue64(gpus[gpu].side, (void *)address, value, 0);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "storing a word", status);
}

int host_register(void *memory, size_t bytes, uint64_t *address, struct error *e)
{
    void *there = NULL;
    hipError_t status = hipHostRegister(memory, bytes, hipHostRegisterPortable | hipHostRegisterMapped);

    if (status == hipSuccess) {
        status = hipHostGetDevicePointer(&there, memory, 0);
        if (status != hipSuccess)
            (void)hipHostUnregister(memory);
    }
    if (status != hipSuccess)
        return gpu_error(e, 0, "registering host memory", status);
    *address = (uint64_t)there;
    return 0;
}

void host_unregister(void *memory)
{
    (void)hipHostUnregister(memory);
}

/* ---- operators over several nodes ---- */

/* CUDA maps registered host memory at the CPU's address. HIP promises that only for host memory that it has allocated
 * itself. */
int host_alloc(uint64_t bytes, void **memory, struct error *e)
{
    void *there = NULL, *here = NULL;
#if defined(__CUDACC__)
    uint64_t address = 0;
    here = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (here == MAP_FAILED)
        return error_set(e, -ENOMEM, "%llu bytes of host memory: %s", (unsigned long long)bytes, strerror(errno));
    int status = host_register(here, bytes, &address, e);
    if (status) {
        (void)munmap(here, bytes);
        return status;
    }
    there = (void *)address;
#else
    hipError_t status = hipHostMalloc(&here, bytes, hipHostMallocMapped | hipHostMallocPortable);
    if (status == hipSuccess)
        status = hipHostGetDevicePointer(&there, here, 0);
    if (status != hipSuccess)
        return gpu_error(e, 0, "allocating host memory", status);
    memset(here, 0, bytes);
#endif
    if (there != here) {
        host_free(here, bytes);
        return error_set(e, -EOPNOTSUPP, "%s: GPUs of this machine do not see host memory where the CPU has it", GPU_KIND);
    }
    *memory = here;
    return 0;
}

void host_free(void *memory, uint64_t bytes)
{
#if defined(__CUDACC__)
    (void)hipHostUnregister(memory);
    (void)munmap(memory, bytes);
#else
    (void)bytes;
    (void)hipHostFree(memory);
#endif
}

int copy_in(int gpu, uint64_t to, const void *from, uint64_t row_bytes, uint64_t stride, uint32_t rows, struct error *e)
{
    const uint64_t pitch_most = 1u << 30; /* less than the largest pitch of both runtimes */
    hipStream_t stream = gpus[gpu].in;
    hipError_t status = hipSetDevice(gpu);

    if (rows > 1 && stride == row_bytes) {
        row_bytes *= rows;
        rows = 1;
    }
    if (rows > 1 && stride <= pitch_most) {
        if (status == hipSuccess)
            status = hipMemcpy2DAsync((void *)to, stride, from, stride, row_bytes, rows, hipMemcpyHostToDevice, stream);
        rows = 0;
    }
    for (uint64_t r = 0; r < rows && status == hipSuccess; r++)
        status = hipMemcpyAsync((void *)(to + r * stride), (const char *)from + r * stride, row_bytes, hipMemcpyHostToDevice,
                                stream);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "copying to it", status);
}

int copies_await(int gpu, struct error *e)
{
    hipError_t status = hipSetDevice(gpu);

    if (status == hipSuccess)
        status = hipStreamSynchronize(gpus[gpu].in);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "copying to it", status);
}

hipError_t copies_join(int gpu)
{
    hipError_t status = hipEventRecord(gpus[gpu].copied, gpus[gpu].in);

    return status == hipSuccess ? hipStreamWaitEvent(gpus[gpu].run[gpus[gpu].lane], gpus[gpu].copied, 0) : status;
}
