/* SPDX-License-Identifier: MIT
 *
 * fccclient.h - fused computation-collectives, served by fccd.
 *
 * A program connects to its node's fccd, joins a communicator, lets the daemon allocate the buffers that the
 * operators work on, and calls operators on them. An operator fuses computation and communication: each finished
 * piece of a rank's result is stored at its destination while the rest is still being computed.
 *
 * Conventions
 *   errors    Functions return 0 or a negative errno value. Outputs are set only on success. The reason in words, with the
 *             rank, the argument, the value and what is allowed, is in fcc_last_error() of the calling thread.
 *   threads   Every function may be called from any thread at any time, also on the same context or communicator,
 *             except that an object must not be used during or after the call that frees it. Operators of one rank run
 *             in the order in which they were submitted. The ranks of a communicator may be processes or threads.
 *   ownership Who creates an object frees it. fcc_disconnect() frees what is left of a context's communicators and buffers.
 *   fork      A child process cannot use its parent's objects and opens a connection of its own. In the child every call with
 *             an object of the parent fails (-ECHILD; NULL or 0 from functions that return something else), and freeing one
 *             does nothing, so that the parent's is not affected. The child may read the parent's cpu buffers at the addresses
 *             that the parent had obtained. No GPU driver survives a fork: a child of a process that has used a GPU, with or
 *             without fccd, cannot use GPUs.
 *   NULL      A NULL argument where an object is needed is -EINVAL; functions that return something else return NULL or 0.
 *             Functions that free an object accept NULL.
 *   waits     Every wait ends. The daemon's time limits end operators. If the job's worker process itself does not respond (it
 *             is stopped, or it hangs), the library declares it dead after the communicator's time limit and 5 s without any
 *             sign of it. While operators are in flight it takes twice the limit and 5 s, as an operator may wait for its ranks
 *             and then run, each for the limit. (Calls without a communicator: 10 s. Joining on a GPU may take 30 s more,
 *             allocating 1 s more for each 128 MiB.) The call then fails with -ETIMEDOUT and the worker's pid in the text. So
 *             do, at once, all other calls on the context, each under its own name, and the context's streams are released. The
 *             context cannot be used any more: disconnect, and connect again. A worker that resumes later finds that this
 *             client has gone, and tells the other ranks. Until the buffers are freed, that worker may still store into them. A
 *             program that polls (fcc_request_test(), or fcc_request_wait() with a limit) instead of waiting gets the same
 *             error if it polls at least once a second. If it polls less often, the error comes later, because time in which a
 *             process does not run is not counted.
 *   streams   Functions that free something wait for operators, not for streams. The caller synchronizes
 *             (cudaStreamSynchronize) before it frees a buffer, communicator or context: all streams that operators were
 *             enqueued on, and all streams whose kernels use the buffer.
 *
 * Error codes
 *   -EINVAL        an argument is wrong, or the ranks' arguments do not fit together
 *   -ERANGE        an index in the data is out of its table's range
 *   -ENOMEM        no memory is left, or the user's share of it is used up
 *   -EUSERS        the user or the job has reached its limit of connections, communicators or operators in flight
 *   -EMFILE        this process, or the worker, has reached its limit of open files
 *   -EPERM         the caller is not permitted to do this
 *   -EACCES        a node's cluster key differs from that of the node where the ranks meet
 *   -ESTALE        a node's worker of this job is about to end, or has ended, and another one takes its place: join again
 *   -ENOENT        no such communicator, buffer or device, or this process does not see the GPU of its rank
 *   -ENODEV        a rank on a GPU, in a process that cannot load or use the GPU's driver
 *   -EIO           the GPU's driver refused or failed; the text quotes it
 *   -ECHILD        the object belongs to the process from which this one was forked
 *   -EALREADY      this rank has joined already, or the pool is open already
 *   -EBUSY         the pool has allocations that are not freed
 *   -EPROTO        the two ends do not speak the same protocol
 *   -EPROTONOSUPPORT  two nodes' daemons do not have the same version
 *   -ENETUNREACH   a node cannot be reached: this node's fccd is not configured for other nodes, or the network has no route
 *   -EHOSTUNREACH  a node cannot be reached: there is no route to the host, or its name cannot be resolved
 *   -ETIMEDOUT     a time limit passed; the text names the ranks that did not arrive, or the worker process that does not
 *                  answer
 *   -ECONNABORTED  the communicator was aborted, or one of its ranks died; it cannot be used any more
 *   -ECONNRESET    the job's worker process is gone; connect again
 *   -ECONNREFUSED  no fccd listens at the socket, or at another node's address
 *   -ESHUTDOWN     fccd is shutting down, or the job's worker process was told to end
 *   -EAGAIN        not finished yet (fcc_request_wait)
 *   -EOPNOTSUPP    not supported where these ranks are: on one node, on several nodes, or on GPUs, as the text says
 *   -EXDEV         a rank's memory cannot be mapped here: it is on another node, or this rank's GPU cannot address that rank's
 *                  GPU
 *
 * Any function that takes an object may return -EINVAL (NULL) and -ECHILD. Any function that asks the worker may return the
 * error that ended the connection (-ECONNRESET, -ESHUTDOWN, -ETIMEDOUT, -EPROTO), and -ENOMEM. Functions list what they may
 * return besides these. On several nodes an error of the connection between two nodes ends the communicator, and may be any of
 * these.
 */
#ifndef FCCCLIENT_H
#define FCCCLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FCC_VERSION_MAJOR 0
#define FCC_VERSION_MINOR 1
#define FCC_VERSION_PATCH 0

#define FCC_MAX_RANKS 1024       /* ranks of one communicator; on GPUs 64 */
#define FCC_MAX_DIMS 4           /* dimensions of one tensor */
#define FCC_TIME_LIMIT_DEFAULT 0 /* the daemon's configured time limit */

typedef struct fcc_context fcc_context;   /* a connection to fccd */
typedef struct fcc_comm fcc_comm;         /* one rank's membership of a communicator */
typedef struct fcc_buffer fcc_buffer;     /* memory that the daemon allocated and this process has mapped */
typedef struct fcc_request fcc_request;   /* an operator that was submitted */
typedef struct fcc_prepared fcc_prepared; /* an operator that was prepared once, to run many times: a persistent collective */

/* In the place of a tensor's buffer, where it is said to be allowed (collectives and products on streams that this process launches, and
 * tensors of bound programs that no other rank uses): the tensor lies anywhere in the memory of this rank's GPU, as
 * cudaMalloc() or PyTorch gives it, and its `offset` is its address in this process. */
#define FCC_ADDRESS ((fcc_buffer *)UINTPTR_MAX)

enum fcc_dtype {
    FCC_F32 = 1,
    FCC_F16 = 2,
    FCC_BF16 = 3,
    FCC_I32 = 4,
    FCC_I64 = 5,
    FCC_U8 = 6,
    FCC_I8 = 7,
    FCC_F64 = 8,
    FCC_F8E4M3 = 9, /* the 8-bit floats are moved, never added; e4m3 is multiplied ("Factors in e4m3", below) */
    FCC_F8E5M2 = 10,
};

/* How an operator runs. COMPUTE_ONLY and COMM_ONLY are for measurements only: their results are undefined. */
enum fcc_schedule_kind {
    FCC_SCHEDULE_AUTO = 0,         /* FUSED or SEQUENTIAL, whichever measured faster for this shape */
    FCC_SCHEDULE_FUSED = 1,        /* every slice is sent as soon as it is computed */
    FCC_SCHEDULE_SEQUENTIAL = 2,   /* compute everything, then communicate everything */
    FCC_SCHEDULE_COMPUTE_ONLY = 3, /* the first half of sequential */
    FCC_SCHEDULE_COMM_ONLY = 4,    /* the second half of sequential */
};

/* A route may be or'ed to a schedule (FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT). It says how gemv_all_reduce, gemm_all_reduce and gemm_reduce_scatter
 * add over several nodes, and so fixes the order of additions (see gemv_all_reduce below). Without a route the topology and the sizes decide,
 * never a measured time. Other operators have a single route and ignore it. */
enum fcc_schedule_route {
    FCC_SCHEDULE_FLAT = 0x40,         /* in rank order, as on one node: on cpu devices the placement does not change the bits */
    FCC_SCHEDULE_HIERARCHICAL = 0x80, /* within each node first, if any node has several ranks */
};
#define FCC_SCHEDULE_ROUTES 0xc0u

/* May be or'ed to a schedule, too: the bits of a row of the result depend on that row of the first factor (and of residual and gate) and on what all
 * rows share, neither on how many rows there are nor on the others. gemv_all_reduce, gemm_all_reduce, gemm_reduce_scatter, gemm_all_to_all and all_gather_gemm then sum every
 * element in one order, and without a route all operators add flat. On cpu devices
 * products take up to 2.4 times as long. On GPUs they run on general kernels; all_gather_gemm there: -EOPNOTSUPP. */
#define FCC_SCHEDULE_BATCH_INVARIANT 0x20u

/* May be or'ed to a schedule, too: partial sums of gemm_all_reduce and gemm_reduce_scatter may be added in any order, so the last bits of a result may
 * differ from run to run (of gemm_all_reduce all ranks still get the same ones). It is a permission. On cpu devices of one node the fused schedule makes
 * use of it: each product is added into the memory of the rank that owns the rows or columns as it is computed, straight into c where that is f32 of
 * gemm_reduce_scatter and there is no epilogue. So an owner needs room for one sum, not for one of each rank, and less memory is read and
 * written (`fccctl plan --any-order`). Elsewhere, and on GPUs, the plans are the usual ones. Not with FCC_SCHEDULE_BATCH_INVARIANT: -EINVAL. */
#define FCC_SCHEDULE_ANY_ORDER 0x10u

enum fcc_buffer_kind {
    FCC_BUFFER_LOCAL = 0,     /* for inputs: used by this rank's operators only */
    FCC_BUFFER_SYMMETRIC = 1, /* for results: allocated collectively, so every rank has one, and its peers store into it */
    FCC_BUFFER_RESULT = 2,    /* for results: allocated by one rank alone, when it needs it; other ranks have no counterpart */
};

/* What a rank computes on. Its buffers lie in that device's memory. */
enum fcc_device_kind {
    FCC_DEVICE_CPU = 0,
    FCC_DEVICE_GPU = 1, /* only in requests: HIP or CUDA, whichever GPUs the node has */
    FCC_DEVICE_HIP = 2,
    FCC_DEVICE_CUDA = 3,
};

enum fcc_pooling { FCC_POOLING_SUM = 0, FCC_POOLING_MEAN = 1 };

/* A communicator's name and secret, as ncclUniqueId. Any process of the same user and job that has it may join. */
struct fcc_unique_id {
    unsigned char bytes[128];
};

/* ---- connection ---------------------------------------------------------------------------------------------- */

/* All zero is the default for every field. */
struct fcc_connect_options {
    const char *socket_path; /* NULL: $FCCD_SOCKET, or /run/fccd/fccd.sock */
    const char *job;  /* NULL: $FCCD_JOB, or the launcher's job id, or "default"; 1 to 63 printable characters, no space */
    uint32_t no_ring; /* not 0: submit over the socket instead of the shared-memory ring */
    /* not 0, for tests: FCC_OP_enqueue uses host functions, as on GPUs whose streams have no wait-for-value operations */
    uint32_t no_stream_memory_operations;
    uint32_t reserved[6]; /* must be 0 */
};

/* Connect to fccd and, through it, to the worker of this user's job, which is started if there is none. `options` may
 * be NULL. *out belongs to the caller until fcc_disconnect(). Waits at most 10 s. If the worker dies before it has accepted the
 * connection, the call tries again, three times in all.
 * Errors: -ECONNREFUSED, -ECONNRESET, -EPERM (this user may not use fccd, or JOBS_PER_USER), -EPROTO, -ESHUTDOWN, -EINVAL,
 * -ENOMEM, -ETIMEDOUT,
 * -EMFILE (this process or the worker), -EUSERS (CONNECTIONS_PER_JOB or CONNECTIONS_PER_USER, fccd.conf(5)). */
int fcc_connect(const struct fcc_connect_options *options, fcc_context **out);

/* Close the connection and free its communicators, buffers and requests. A communicator that was not destroyed before is
 * aborted for its other ranks. NULL is allowed. */
void fcc_disconnect(fcc_context *context);

/* The number of the node's devices that this context may use; -EINVAL, -ECHILD. */
int fcc_device_count(const fcc_context *context);

/* The reason of this thread's last failed fcc_ call. Never NULL; valid until the thread's next failing call. */
const char *fcc_last_error(void);

/* "MAJOR.MINOR.PATCH" of the library. */
const char *fcc_version(void);

/* ---- communicators ------------------------------------------------------------------------------------------- */

/* Make a new communicator's id. One rank calls this and gives the id to the others by any means it has.
 * Errors: -EIO (no random numbers), -ECONNRESET. */
int fcc_get_unique_id(fcc_context *context, struct fcc_unique_id *out);

struct fcc_comm_options {
    /* This rank's device: its index among the devices of its kind, as fccctl devices shows it. -1: rank modulo the number of
     * devices of that kind. */
    int32_t device;
    /* How long an operator may wait for its ranks, and then run. 0: the daemon's TIME_LIMIT_MS. The shortest limit of all ranks
     * is in force. */
    uint32_t time_limit_ms;
    uint32_t device_kind; /* enum fcc_device_kind; the same on all ranks */
    uint32_t reserved[5]; /* must be 0 */
};

/* Join the communicator `id` as `rank` of `nranks`, and wait until all have joined. `options` may be NULL (device -1).
 * *out belongs to the caller until fcc_comm_destroy().
 * A rank on a GPU: this process must see that GPU (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES), under any index. The library
 * retains the GPU's primary context until fcc_disconnect().
 * If one rank cannot join, all ranks get its error, which names it; so do ranks that call within the time limit after it. Then
 * all ranks may try again with the same id. With an id of fcc_get_unique_id() this also holds if the rank's node and the node
 * where the ranks meet refuse each other because their cluster keys or versions differ. With fcc_comm_init_env() the other
 * ranks then wait for their time limit, and its error says which of NODES cannot be reached from there. (Other ranks do not
 * hear of a rank that has no context, or whose node is not permitted to connect to theirs.)
 * Errors: -EINVAL (rank, nranks, device, id), -EALREADY (the rank has joined, or all have), -ENOENT (device), -ENODEV, -EIO,
 * -ENOMEM, -EXDEV, -EUSERS (COMMS_PER_JOB or COMMS_PER_USER on a node, fccd.conf(5)),
 * -EMFILE (this process, or a node's worker), -ETIMEDOUT, -ECONNABORTED, -ECONNRESET, -ESHUTDOWN; with ranks on several nodes
 * -EPERM (a node's fccd does not serve this user, or may not connect to where the ranks meet), -EACCES, -ENETUNREACH,
 * -EHOSTUNREACH, -ECONNREFUSED,
 * -ESTALE, -EPROTO, -EPROTONOSUPPORT. */
int fcc_comm_init(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
                  const struct fcc_comm_options *options, fcc_comm **out);

/* What the launcher tells this process in its environment. */
struct fcc_env {
    int32_t rank, size;             /* among all processes that the launcher has started */
    int32_t local_rank, local_size; /* among the launcher's processes on this node; -1: unknown */
    char launcher[16];              /* "torchrun", "openmpi", "mpich", "slurm", "fcc" (the variables FCC_...), "none" */
    char job[64];                   /* the job's id, as fcc_connect() takes it from the environment */
    char world[64];   /* distinguishes this launch from others of the same job: Slurm's step, for example. May be "" */
    char meeting[64]; /* the rendezvous: the node where the ranks meet, "host" or "host:port"; "": this node */
};

/* Read the launcher's environment. Launchers are looked for in this order: torchrun, Open MPI (mpirun), MPICH (mpiexec), Slurm
 * (srun). The first one found counts, so torchrun under srun is torchrun. A process without a launcher is rank 0 of 1.
 * Variables that are missing, malformed or contradictory are errors; the text names the variable, its value and what is
 * allowed.
 *
 * These variables override the launcher's:
 *   FCC_RANK, FCC_SIZE  set both or neither. Without a launcher FCC_MEETING must be set, too, and FCCD_JOB must differ between
 *                       launches that run at the same time
 *   FCC_LOCAL_RANK
 *   FCC_MEETING         the rendezvous: the address of a node that has a rank, the same for all ranks; best as NODE_ADDRESS in
 *                       that node's fccd.conf, with or without the port. Set but empty: all ranks are on this node
 * Ranks of one node meet on that node. Ranks of several nodes meet at MASTER_ADDR (torchrun) or on the first host of the step
 * (Slurm). Open MPI and MPICH name no such host: FCC_MEETING must be set if the ranks are on several nodes, and with MPICH
 * FCCD_JOB, too.
 * Errors: -EINVAL. */
int fcc_env_find(struct fcc_env *out);

/* Join a communicator of all processes that the launcher has started (fcc_env_find()) without exchanging an id. The n-th
 * successful call of each process joins the n-th such communicator. So all ranks make these calls in the same order, from
 * whatever threads and with whatever contexts of the job. Otherwise as fcc_comm_init().
 * Errors: those of fcc_env_find() and fcc_comm_init(). */
int fcc_comm_init_env(fcc_context *context, const struct fcc_comm_options *options, fcc_comm **out);

/* For bindings and libraries above this one that check arguments themselves: tell the other ranks that this rank cannot join.
 * `status` is a negative errno value; `reason` names the argument, its value and what is allowed. All ranks of the communicator
 * get that error, as if fcc_comm_init() had failed on this rank. `id` NULL: the next communicator of fcc_comm_init_env();
 * nranks and rank are ignored, the launcher's count. Returns 0 if the other ranks are told. Otherwise they are not: -EINVAL
 * (status, reason), errors of fcc_env_find(),
 * -ENETUNREACH, -ECONNRESET, -ESHUTDOWN. */
int fcc_comm_init_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                         const char *reason);

/* Make new communicators of the ranks of `comm`, as MPI_Comm_split() does. All ranks call it. Those with the same color get a communicator of
 * their own, in the order of their keys; ranks with the same key are in the order of their ranks in `comm`. color: 0 and more, or FCC_UNDEFINED:
 * this rank is in none, and *out is NULL. options: of this rank in the new communicator; NULL: its device and time limit in `comm`.
 * `comm` stays as it is, and so do its buffers: as inputs they may be used in both.
 * Errors: -EINVAL (color, out: on all ranks, when all have come; options: on all of this rank's color), -ETIMEDOUT (a rank did not come),
 * -ECONNABORTED (one is gone), and those of fcc_comm_init(). */
#define FCC_UNDEFINED (-32766)
int fcc_comm_split(fcc_comm *comm, int32_t color, int32_t key, const struct fcc_comm_options *options, fcc_comm **out);

/* Make a new communicator of the ranks that are left when a rank or a node has died, or the communicator was aborted, as ncclCommShrink() and
 * ULFM's MPIX_Comm_shrink() do. All ranks that are left call it. They agree on who that is: ranks whose process or node is dead, and ranks that
 * have destroyed the communicator, are not in it, whether or not anybody has heard of that yet; if one dies meanwhile, the others agree anew (after
 * the time limit, if they had agreed and were waiting for it in *out).
 * The ranks keep their order. A rank that is alive is waited for, at most for the time limit, unless it is one of `excluded` (nexcluded ranks of
 * `comm`, the same on all ranks; NULL and 0: none): those need not call it, and get -ECONNABORTED from `comm`.
 * This rank's device and time limit stay as they are. Its buffers belong to *out from then on, with what is in them, and are freed with it;
 * addresses of other ranks' parts (fcc_buffer_peer()) are void. What an operator that was broken off has stored is undefined. `comm` has
 * ended: its prepared operators and graphs, trackers and registered puts with it, and it is only to be destroyed.
 * On GPUs: if the death has cost this process its GPU's context, as it does under MPS, -ECONNRESET: the job has to start again.
 * Errors: -EINVAL (excluded, nexcluded, out, or excluded differs: on all that are left; they may call it again), -ETIMEDOUT (a rank did not
 * come: the text names it; it may be excluded the next time), -ECONNABORTED (the others have excluded this rank), -ECONNRESET, and those of
 * fcc_comm_init(). */
int fcc_comm_shrink(fcc_comm *comm, const int32_t *excluded, int nexcluded, fcc_comm **out);

/* Leave the communicator and free this rank's buffers in it. Waits for operators in flight, at most for the communicator's
 * time limit. The other ranks' next operator fails with -ECONNABORTED. NULL is allowed. */
void fcc_comm_destroy(fcc_comm *comm);

/* End the communicator for all ranks: operators that run or wait end with -ECONNABORTED, and their error text names this rank
 * and `reason` (at most 200 characters; may be NULL). Errors: -EINVAL (reason), -ECONNRESET. */
int fcc_comm_abort(fcc_comm *comm, const char *reason);

/* Errors: -EINVAL, -ECHILD (fcc_comm_device_kind() returns them cast to enum fcc_device_kind). */
int fcc_comm_rank(const fcc_comm *comm);
int fcc_comm_size(const fcc_comm *comm);
int fcc_comm_device(const fcc_comm *comm);                       /* the device's index, as in fcc_comm_options.device */
enum fcc_device_kind fcc_comm_device_kind(const fcc_comm *comm); /* FCC_DEVICE_CPU, FCC_DEVICE_HIP or FCC_DEVICE_CUDA */

/* ---- buffers ------------------------------------------------------------------------------------------------- */

/* Let the daemon allocate `bytes` (at least 1) of zeroed memory on this rank's device and map it here.
 * FCC_BUFFER_SYMMETRIC is collective: all ranks call it with the same size and in the same order, relative to their other
 * symmetric allocations and their operators. FCC_BUFFER_LOCAL and FCC_BUFFER_RESULT are not collective. An invalid `kind` fails
 * on this rank only: ranks that allocate symmetric memory meanwhile wait for this one, which may call again. The memory is
 * page-aligned. *out belongs to the caller until fcc_buffer_free() or fcc_comm_destroy().
 * Errors: -EINVAL, -ENOMEM, -EMFILE (a process is out of file descriptors; the communicator remains usable), -EIO, -ETIMEDOUT,
 * -ECONNABORTED (the communicator has ended; with any kind), -ECONNRESET. */
int fcc_buffer_alloc(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes, fcc_buffer **out);

/* Unmap and release the buffer. The daemon keeps the memory until operators in flight that use it have finished. On a GPU the
 * caller makes sure that the streams of this process have finished with it. Not collective. NULL is allowed. */
void fcc_buffer_free(fcc_buffer *buffer);

/* The buffer's address in this process: for the CPU, or for the GPU of its rank (in this process's primary context of that GPU,
 * so that its kernels, its BLAS and torch.from_blob can use it). */
void *fcc_buffer_data(const fcc_buffer *buffer);
size_t fcc_buffer_size(const fcc_buffer *buffer); /* bytes, as asked for */

/* The context's buffer that contains the address, of any of its communicators; NULL if there is none. The caller does not own
 * it: it may use the buffer until its owner frees it. */
fcc_buffer *fcc_buffer_find(const fcc_context *context, const void *address);

/* Copy `bytes` between host memory and the buffer, beginning at its byte `offset`, on any kind of device; returns when it is
 * done. On a GPU this is not ordered with any stream. Errors: -EINVAL (offset and bytes), -EIO (the GPU's reason). */
int fcc_buffer_write(fcc_buffer *buffer, uint64_t offset, const void *from, size_t bytes);
int fcc_buffer_read(const fcc_buffer *buffer, uint64_t offset, void *to, size_t bytes);

/* ---- memory pools: buffers for allocators that have no handles -------------------------------------------------- */

/* Some frameworks call an allocator's functions with a size and a device index only, without a handle of the caller's choice:
 * torch.cuda.MemPool with a CUDAPluggableAllocator, for example. fcc_pool_open() directs the allocations for `device` to local
 * buffers of `comm`. `device` is the framework's index, 0 to FCC_POOL_DEVICES - 1; fccd only compares it. One pool may be open
 * for each. `comm` must not be destroyed before fcc_pool_close() of that device has returned 0, which needs all allocations to
 * have been freed. Errors: -EINVAL, -EALREADY (the device has an open pool), -EBUSY (allocations are left), -ENOENT (not
 * open). */
#define FCC_POOL_DEVICES 64
int fcc_pool_open(fcc_comm *comm, int device);
int fcc_pool_close(int device);

/* Their types are those of CUDAPluggableAllocator. alloc returns NULL if the device's pool is not open or there is no memory
 * (fcc_last_error()). free waits until the GPU is idle, as cudaFree does. `stream` is ignored. */
void *fcc_pool_alloc(ptrdiff_t bytes, int device, void *stream);
void fcc_pool_free(void *memory, ptrdiff_t bytes, int device, void *stream);

/* A counter that fcc_pool_free() increments when it removes a buffer, before it releases the memory. A caller that caches
 * results of fcc_buffer_find() compares it before it uses one. It may be read at any time. */
const volatile uint64_t *fcc_pool_frees(void);

/* ---- the program's own kernels ------------------------------------------------------------------------------- */
/*
 * A program's own kernels (or, on the cpu, its threads) may store into other ranks' parts of a symmetric buffer, and wait for
 * what other ranks store into this rank's part: fused operators written by the program. They follow the rules of fccd's
 * kernels:
 *
 *   signals   A signal is a word of 8 bytes, aligned to 8, in a symmetric buffer (whose memory starts zeroed). Its values only
 *             grow: the n-th use stores n, and the signal is never reset, so a value of an earlier use cannot be mistaken for a
 *             later one. Only one rank stores to each signal; to count several ranks, give each a signal of its own.
 *   sending   Store the data, then the signal: with release semantics at system scope, by a thread that all stores of data
 *             happen before (a barrier of the workgroup; on a GPU that thread then executes __threadfence_system() or an
 *             st.release.sys).
 *   waiting   Load the signal with acquire semantics at system scope until it has reached the awaited value, then load the
 *             data. In the same loop load the communicator's status word (acquire). If it is not 0, load the signal once more
 *             (acquire), and stop waiting if it still has not reached the value: it never will.
 *   reuse     Before a rank overwrites data that a peer may still be reading, the peer has signalled that it has read it. The
 *             program orders its own kernels and fccd's operators if they use the same buffer.
 *
 * A kernel that waits keeps its place on the GPU, so what it waits for must not need that place. In a kernel with more
 * workgroups than fit on the GPU at a time only the last workgroups wait, or it waits only for other ranks' earlier kernels.
 */

/* Map the part of `rank` of a symmetric buffer into this process. *out is an address as fcc_buffer_data() returns it for this
 * rank's own part: for the CPU, or for this rank's GPU. It stays valid until `buffer`, this rank's part, is freed, even if the
 * other rank frees its part or dies before: its memory is kept until then (and counted against the user's memory), but nobody
 * reads what is stored there. Repeated calls return the same address. `rank` may be this rank.
 * Errors: -EINVAL (a buffer that is not symmetric, for the own rank, too; rank), -EXDEV (the rank is on another node), -ENOENT
 * (that rank has freed its part or has left), -ENOMEM, -EMFILE, -EIO, -ECONNABORTED, -ECONNRESET. */
int fcc_buffer_peer(fcc_buffer *buffer, int rank, void **out);

/* The communicator's status word, for kernels of this rank's GPU and threads of this process that wait for other ranks. 0: all
 * is well. A negative errno value: the communicator was aborted, another rank has died or left, or the worker is gone, and
 * nobody should wait for other ranks any more. If a rank has left (fcc_comm_destroy), the word is set after all stores and puts
 * of that rank have arrived, unless the communicator is aborted meanwhile. The next operator fails with the reason in words.
 * The word stays valid until the communicator is destroyed; it is read-only. From the first call on, a thread of the library
 * watches for the worker's end, and pings it now and then: a worker that does not answer for the time limit and 5 s (it is
 * stopped, or hangs) is declared dead, and the word becomes -ETIMEDOUT.
 * Errors: -EINVAL, -ENOMEM (more than 1024 communicators of one context at a time, or no thread), -EMFILE. */
int fcc_comm_status(fcc_comm *comm, const int32_t **out);

/* A put: rows of this rank's memory that are copied to a rank on another node when this rank triggers it, and a signal that is
 * stored after them. Either may be absent. */
struct fcc_put {
    int32_t rank;         /* destination */
    uint32_t rows;        /* number of rows; 0: no data, and row_bytes, stride, from and to are ignored */
    uint64_t row_bytes;   /* at least 1 */
    uint64_t stride;      /* bytes from row to row, at both ends, at least row_bytes; ignored for a single row */
    fcc_buffer *from;     /* source: a buffer of this rank, of any kind */
    uint64_t from_offset; /* the first row's offset in bytes in the source */
    fcc_buffer *to;      /* destination: this rank's part of a symmetric buffer; the rows go into the other rank's part of it */
    uint64_t to_offset;  /* the first row's offset in bytes in the other rank's part */
    fcc_buffer *signals; /* this rank's part of the symmetric buffer that the signal lies in; NULL: no signal */
    uint64_t signal_offset; /* the signal's offset in bytes in the other rank's part; a multiple of 8 */
    uint32_t reserved[4];   /* must be 0 */
};

/* Register a put; a rank may have at most 65536. Triggers name it by *number until one of its buffers is freed, here or, its
 * part, by the other rank. After that its triggers do nothing, and the number may be reused. A rank frees its part of a buffer
 * only after all puts into it have arrived, as their signals show. (A barrier is not enough: it may overtake triggers.) Puts
 * that arrive later are dropped; over RDMA they may end the connection between the nodes, and their communicators. Ranks on
 * GPUs have no triggers yet.
 * Errors: -EINVAL (rank, rows, offsets), -ENOENT (a buffer), -EOPNOTSUPP (all ranks are on this node, or on GPUs), -ENOMEM,
 * -ECONNABORTED, -ECONNRESET. */
int fcc_put_register(fcc_comm *comm, const struct fcc_put *put, uint32_t *number);

/* Trigger a put from a thread on the CPU: the proxy sends its rows, in the order of the triggers, and then sets the signal to
 * `value`. Waits while the proxy has 4096 triggers to take. What the thread has stored before the call is sent. The rows must
 * not change until the other rank has signalled that it has received them.
 * Errors: -EINVAL (number: 0), -ECONNABORTED or another value of the status word, errors of fcc_comm_triggers(). An unknown
 * number ends the communicator. */
int fcc_put_trigger(fcc_comm *comm, uint32_t number, uint64_t value);

/* This rank's trigger FIFO, for kernels that trigger puts. Its memory is addressable from the rank's device. A producer does:
 *
 *     p = (*head)++                                   atomic, system scope, acquire and release
 *     while p - *tail >= capacity: leave if status    tail: acquire. A producer that leaves never returns: the communicator has
 *                                                     ended
 *     slots[p % capacity][1] = value
 *     slots[p % capacity][0] = number                 release, system scope, after all stores of the data to be sent
 *
 * The proxy polls: it sees a trigger at once while triggers are frequent, and within about 2 ms after a quiet time. */
struct fcc_triggers {
    uint64_t *head;
    const uint64_t *tail;
    uint64_t (*slots)[2];
    uint64_t capacity; /* a power of two */
};
/* *out is valid until the communicator is destroyed; fcc_comm_destroy() waits until the proxy has taken all triggers.
 * Errors: -EOPNOTSUPP (all ranks are on this node, or on GPUs), -ENOMEM, -EMFILE, -ECONNABORTED, -ECONNRESET. */
int fcc_comm_triggers(fcc_comm *comm, struct fcc_triggers *out);

/* ---- output maps ----------------------------------------------------------------------------------------------- */
/*
 * An output map is a range of addresses whose pieces are memory of several ranks of this node, one behind the other. What a kernel, a
 * library (a BLAS that knows nothing of ranks) or a thread stores there lies at its place in that rank's memory at once: a matrix product
 * whose result is a map performs an All-to-All, or fills a neighbour's part. Nothing says by itself that a piece has come: who has stored
 * raises a signal behind it (above), or a rule does ("trackers", below).
 *
 * The memory order of a map is that of its pieces: a store through a map, then a signal (release), is seen by who loads the signal
 * (acquire), then the data. A thread that reads a place under another address than it was stored at orders the two in this way, too.
 */
typedef struct fcc_map fcc_map; /* such a range */

/* One piece. */
struct fcc_map_piece {
    uint64_t at;          /* where it begins in the map, in bytes: a multiple of the granularity */
    uint64_t bytes;       /* a multiple of the granularity; of the piece at the map's end: at least 1 */
    uint64_t offset;      /* where it begins in the buffer of `rank`, in bytes: a multiple of the granularity */
    fcc_buffer *buffer;   /* this rank's part of a symmetric buffer. For this rank's own memory: any buffer of it */
    int32_t rank;         /* whose part of the buffer it is: a rank on this node */
    uint32_t reserved[5]; /* must be 0 */
};

/* What pieces are multiples of: a page on cpu devices, 2 MiB on CUDA GPUs. Errors: -EIO, -EOPNOTSUPP (the GPUs' memory cannot be
 * mapped by pieces). */
int fcc_map_granularity(fcc_comm *comm, size_t *out);

#define FCC_MAP_PIECES 1024
/* Make a map of n pieces, 1 to FCC_MAP_PIECES, in any order. Together they fill the map: none overlaps another, in the map or in a
 * rank's memory, and they leave no hole. Not collective: each rank maps what it stores. *out belongs to the caller until
 * fcc_map_free(): also when the communicator has ended, its buffers are freed, or a rank has died, the addresses stay valid. Nobody
 * reads then what is stored there, and the memory is no longer counted against the user's. On GPUs the map is for this rank's GPU, and
 * pieces are whole buffers, `offset` 0 and all of the length, rounded up to the granularity: their drivers map an allocation as a whole
 * (CUDA 13.0 on an H200: a part of one is CUDA_ERROR_NOT_SUPPORTED).
 * Errors: -EINVAL (pieces, with the granularity), -EXDEV (a rank on another node: what crosses nodes is a rule), -EOPNOTSUPP, errors of
 * fcc_buffer_peer(). */
int fcc_map_create(fcc_comm *comm, const struct fcc_map_piece pieces[], int n, fcc_map **out);

/* Free a map. On a GPU the call waits until the GPU has done all that this process has given to it, as its streams may store there. On
 * cpu devices the caller makes sure that no thread stores there any more: a store after this kills the process, and the other ranks
 * hear that it has died. NULL is allowed. */
void fcc_map_free(fcc_map *map);

void *fcc_map_data(const fcc_map *map);  /* its address, for the CPU or this rank's GPU */
size_t fcc_map_size(const fcc_map *map); /* the sum of its pieces' bytes */
/* The piece that holds the byte `offset` of the map. Errors: -EINVAL (offset). */
int fcc_map_find(const fcc_map *map, uint64_t offset, struct fcc_map_piece *out);

/* For a matrix in a map whose pieces have `rows` rows each: the smallest distance of rows in bytes, at least row_bytes and a multiple of
 * `element`, with which each piece's rows are a multiple of the granularity. It is at most 1.1 row_bytes, or row_bytes rounded up to the
 * element. -EOPNOTSUPP: there is none; the text has the smallest, and says what to do instead: a tensor, and a call of the library, for
 * each piece. Errors: -EINVAL (row_bytes, rows, element: 0), those of fcc_map_granularity(). */
int fcc_map_stride(fcc_comm *comm, uint64_t row_bytes, uint64_t rows, uint64_t element, uint64_t *out);

/* ---- trackers: count what is produced, and let it be sent ---------------------------------------------------------- */
/*
 * A tracker has rules. A rule says how much makes a piece of work complete, and what happens then: rows are stored at another rank, or
 * added to what is there, or a signal is raised, without a thread of the program: fccd's worker does it, or, to a rank on another node,
 * its proxy. Producers count with fcc_tracker_add(), or raise the count in memory themselves (fcc_tracker_count()); they may be several
 * threads, and need not know what the count is for.
 *
 * Runs. A rule is prepared once and works again and again. Run n of a rule is *produced* when its count has reached n times rule.count,
 * and it is *due* when, besides, the words that it awaits are there. Runs of a rule follow each other in order. Counts and words only grow, so
 * nothing is reset between runs, and a producer may count for run n + 1 before run n is done.
 *
 * Words. Signals are those of a program's own kernels (above): words of 8 bytes in symmetric buffers, whose value is the number of the
 * last run. A rule may await words of this rank's part: of another rank's rule that has stored here, or of the receiver, who says that
 * it has used what run n brought. A receiver that is one run ahead, or behind, is told apart by the number. fcc_signal_wait() waits for
 * a word, and fcc_tracker_wait() for a run of a rule of this rank's own.
 *
 * Order. What a producer has stored before it counts is what is sent, and the signal is stored behind the data (release). All rules of the
 * ranks of one node are worked off by one thread, so additions into the same memory do not disturb each other. The order in which they
 * are made is the order in which they are due; where the sum's bits matter, each rule awaits the signal of the one before it.
 *
 * Ends. Rules do nothing any more, and who waits for them gets the error, when the communicator has ended (a death, an abort, a time limit),
 * or, of a rule, when a buffer that it names is freed, here or, its part, by the other rank. A rule that has been begun (counted for, or
 * waited for) and then sees nothing new for the communicator's time limit ends the communicator with -ETIMEDOUT; the text has the rule, its
 * count and what it waits for. fccctl track shows all of it at any time.
 *
 * GPUs. Ranks on GPUs have the same rules, for ranks of their node. Rows are stored by copy engines, and added by a few workgroups, on streams of
 * the worker's own; the worker's thread looks at counts and words, and starts them. Points of a stream count (fcc_tracker_add_enqueue()), and
 * a stream waits for runs (fcc_tracker_wait_enqueue()); both may be captured into a CUDA graph, whose replays count and wait again. When a rule
 * has ended, streams that wait for it go on, also those of later replays: what has come is then told by fcc_comm_error(), or by
 * fcc_tracker_wait(). The worker's thread sleeps for up to 1 ms between two looks at such counts. Where that is too long, streams work off runs
 * themselves (fcc_tracker_run_enqueue()).
 */
typedef struct fcc_tracker fcc_tracker;

enum fcc_rule_action {
    FCC_RULE_SIGNAL = 0, /* nothing is moved: the signal is raised, or the function is called */
    FCC_RULE_STORE = 1,  /* rows are copied */
    FCC_RULE_ADD = 2,    /* rows are added to what is there, in f32, and rounded; not to a rank on another node */
};

/* A word that a rule awaits: of this rank's part of a symmetric buffer. Run n needs its value to be n - lag at least. */
struct fcc_rule_await {
    fcc_buffer *buffer; /* NULL: no word */
    uint64_t offset;    /* bytes, a multiple of 8 */
    uint32_t lag;       /* 0: the same run, for what must have come. 1: the one before, for what must have been used */
    uint32_t reserved;  /* must be 0 */
};

#define FCC_RULE_AWAITS 2
#define FCC_RULE_NAME_MAX 32 /* bytes of a name with its NUL */
#define FCC_RULES_MAX 256    /* rules of a tracker */
struct fcc_rule {
    const char *name; /* for errors and fccctl: printable characters; NULL: none */
    uint64_t count;   /* how much makes a run: 1 to 2^32 */
    uint32_t action;  /* enum fcc_rule_action */
    int32_t rank;     /* whose memory is stored to, and whose word is raised; may be this rank */
    struct fcc_rule_await awaits[FCC_RULE_AWAITS];
    uint32_t rows;        /* STORE, ADD: number of rows, at least 1. Otherwise ignored, as what follows */
    uint32_t dtype;       /* ADD: FCC_F32, FCC_F16 or FCC_BF16 */
    uint64_t row_bytes;   /* at least 1 */
    uint64_t from_stride; /* bytes from row to row, at least row_bytes; ignored for a single row. The same at both ends */
    uint64_t to_stride;   /* if the rank is on another node */
    fcc_buffer *from;     /* a buffer of this rank, of any kind */
    uint64_t from_offset;
    fcc_buffer *to; /* this rank's part of a symmetric buffer; the rows go into the other rank's part of it */
    uint64_t to_offset;
    fcc_buffer *signals; /* this rank's part of the symmetric buffer that the signal lies in; NULL: none */
    uint64_t signal_offset;
    /* Called by a thread of this library when a run is done, for each run in order. It must not free the tracker. NULL: none */
    void (*call)(void *argument, uint64_t run);
    void *argument;
    uint32_t reserved[4]; /* must be 0 */
};

/* Make this rank's tracker of the communicator; it has one at a time. Not collective. *out belongs to the caller until
 * fcc_tracker_free() or fcc_comm_destroy().
 * Errors: -EALREADY (there is one), -EIO (the GPU's reason), -ENOMEM, -EMFILE, -ECONNABORTED, -ECONNRESET. */
int fcc_tracker_create(fcc_comm *comm, fcc_tracker **out);

/* Free a tracker: its rules do nothing any more, and when the call returns nothing is stored or called by them. Waits for its rules that
 * other threads, or functions of rules, are in end with -ENOENT, and the call returns after them. On a GPU streams that wait go on, and the
 * call waits until the GPU has done all that this process has given to it. NULL is allowed. */
void fcc_tracker_free(fcc_tracker *tracker);

/* Add a rule; *number names it from then on, from 0 in the order of the calls. `rule` may be freed then.
 * Errors: -EINVAL (the text has the field, its value and what is allowed), -ENOENT (a buffer that is not this job's or was freed, a rank
 * that has left), -ENOMEM (FCC_RULES_MAX rules), -EOPNOTSUPP (an addition at another node; on GPUs any rule for a rank there), -ECONNABORTED, -ECONNRESET. */
int fcc_tracker_rule(fcc_tracker *tracker, const struct fcc_rule *rule, uint32_t *number);

/* Count n for a rule. What this thread, and those that it has synchronized with, have stored before is part of the run. Does not wait.
 * Errors: -EINVAL (rule). (What ends rules is told by those that wait.) */
int fcc_tracker_add(fcc_tracker *tracker, uint32_t rule, uint64_t n);

/* A rule's count, for producers that raise it themselves: atomically, with release semantics at system scope, behind their stores. The
 * worker notices within 2 ms; fcc_tracker_add(tracker, rule, 0) lets it look at once. On a GPU it
 * is an address for kernels only, whose additions are counted besides those of threads; in CUDA C++, by one thread behind the workgroup's barrier:
 *     cuda::atomic_ref<uint64_t, cuda::thread_scope_system>(*count).fetch_add(1, cuda::memory_order_release);
 * NULL: there is no such rule. */
uint64_t *fcc_tracker_count(fcc_tracker *tracker, uint32_t rule);

/* For ranks on GPUs. Count n for a rule when the stream has come to this point: what it has stored before is part of the run. Does not wait.
 * Errors: -EINVAL (rule), -EOPNOTSUPP (a rank on a cpu device), -EIO (the GPU's reason), -ENODEV (fccd's plug-in cannot be loaded). */
int fcc_tracker_add_enqueue(fcc_tracker *tracker, uint32_t rule, uint64_t n, void *stream);
/* Let the stream wait until the last run of a rule is done that has been counted for when the stream comes to this point; what follows on the
 * stream sees what the rule's words, and those that it awaits, have told of. So a rule without rows that awaits another rank's signal lets a
 * stream wait for that. The stream goes on, too, when the rule has ended. Does not wait. Errors as above. */
int fcc_tracker_wait_enqueue(fcc_tracker *tracker, uint32_t rule, void *stream);

/* For ranks on GPUs. Let the stream itself work off the rule's next run when it comes to this point: it waits for the words that the rule awaits; its rows are stored by a
 * copy engine (or added by a few workgroups), behind all that the stream has done before; then the signal is raised. What follows on the stream sees all
 * of it, so a rule without rows that awaits a word lets the stream wait for another rank. No thread of the CPU has a part in it: a run takes some
 * microseconds besides its rows, and no multiprocessor while they are copied. Rows that are to be moved beside what is computed go onto a stream of their
 * own, behind an event. The stream may be under capture: replays are further runs, and a graph keeps the memory of the rule's buffers.
 *
 * Such a rule is not counted for, and nobody calls fcc_tracker_wait_enqueue() for it. Its runs follow each other: streams that have them are ordered, by events
 * or as replays of one graph are. The rank must not free the rule's buffers before its streams have passed, as with kernels of its own. When the rule has
 * ended, streams go on without waiting, and raise no signal.
 * Errors: -EINVAL (rule; one that is counted for), -ENOENT (a buffer has been freed), -EOPNOTSUPP (a rank on a cpu device, an older fccd), -EIO, -ENODEV. */
int fcc_tracker_run_enqueue(fcc_tracker *tracker, uint32_t rule, void *stream);

/* Wait until run `run` (1, 2, ...) of a rule is done: its rows are stored, or, to another node, given to the proxy; then `from` may be
 * changed, but to another node only when the receiver has signalled that the rows have come. At most timeout_ms (then -EAGAIN), or with
 * -1 for as long as the time limit allows.
 * Errors: -EINVAL (rule, run), -EAGAIN, -ENOENT (a buffer of the rule was freed, or the tracker), the communicator's end: -ETIMEDOUT, -ECONNABORTED, ... */
int fcc_tracker_wait(fcc_tracker *tracker, uint32_t rule, uint64_t run, int timeout_ms);

/* Wait until a word (aligned to 8, in memory of a buffer or a map) is at least `value`, with acquire semantics; at most timeout_ms (then
 * -EAGAIN), or with -1 for the communicator's time limit, which then ends the communicator on all ranks with a text that has the
 * word's value. Errors: -EINVAL (word), -EAGAIN, the communicator's end. */
int fcc_signal_wait(fcc_comm *comm, const uint64_t *word, uint64_t value, int timeout_ms);

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* Where a tensor lies. A tensor with buffer NULL is absent. */
struct fcc_tensor {
    fcc_buffer *buffer;
    uint64_t offset;              /* bytes from the buffer's start; a multiple of the element's size */
    uint32_t dtype;               /* enum fcc_dtype */
    uint32_t ndim;                /* 1 to FCC_MAX_DIMS */
    int64_t shape[FCC_MAX_DIMS];  /* elements; 0 is allowed */
    int64_t stride[FCC_MAX_DIMS]; /* elements, not negative; all 0: dense, row-major */
};

static inline struct fcc_tensor fcc_tensor_1d(fcc_buffer *buffer, uint64_t offset, enum fcc_dtype dtype, int64_t n)
{
    struct fcc_tensor t = {buffer, offset, (uint32_t)dtype, 1, {n, 0, 0, 0}, {0, 0, 0, 0}};
    return t;
}

static inline struct fcc_tensor fcc_tensor_2d(fcc_buffer *buffer, uint64_t offset, enum fcc_dtype dtype, int64_t rows,
                                              int64_t cols)
{
    struct fcc_tensor t = {buffer, offset, (uint32_t)dtype, 2, {rows, cols, 0, 0}, {0, 0, 0, 0}};
    return t;
}

static inline struct fcc_tensor fcc_tensor_3d(fcc_buffer *buffer, uint64_t offset, enum fcc_dtype dtype, int64_t n0, int64_t n1,
                                              int64_t n2)
{
    struct fcc_tensor t = {buffer, offset, (uint32_t)dtype, 3, {n0, n1, n2, 0}, {0, 0, 0, 0}};
    return t;
}

/* Bytes of one element, or 0 for an unknown dtype. */
size_t fcc_dtype_size(enum fcc_dtype dtype);

/* ---- operators ----------------------------------------------------------------------------------------------- */
/*
 * Every rank of the communicator calls the same operators in the same order. FCC_OP(comm, args) returns when this rank's
 * result is complete. FCC_OP_start(comm, args, &request) returns at once; `args` may be freed then, the buffers must not change
 * until the request is finished.
 *
 * If a rank's arguments are wrong, or the ranks' arguments do not fit together, that operator ends with the same error on all
 * ranks, and the communicator remains usable. This includes errors that the library finds itself (NULL, too many tables, a
 * stream under capture): the failed operator takes its place in the rank's order, and the other ranks get its error. This rank
 * gets the error when they do; FCC_OP_start and FCC_OP_enqueue return it at once and create no request. Only calls with no
 * valid communicator do not concern other ranks. -ETIMEDOUT and -ECONNABORTED end the communicator, as does any error that
 * prevents an operator's submission.
 *
 * A tensor *for results* lies in a symmetric buffer or a result buffer that this rank has allocated in the communicator.
 *
 * No operator works in place: an input that shares a byte with the result, of this rank or of another, is -EINVAL. Inputs may
 * overlap each other. They may lie in the same buffer as the result: beside it, or between its rows, as the other columns of
 * one matrix do. (An input between the result's rows whose row stride differs from the result's may be refused although it
 * touches no byte of it.)
 *
 * FCC_OP_enqueue(comm, args, stream, &request) is for ranks on a GPU: the operator takes its place on the caller's stream
 * (hipStream_t, cudaStream_t, CUstream; NULL is the default stream, CUDA's legacy one). The operator begins after the work
 * already on the stream, and work enqueued later sees its result; the CPU waits for neither. (Nothing is stored into a rank's
 * memory before that rank's stream has reached the operator. Kernels on the other ranks' GPUs may run and wait for it:
 * libfccclient(3).) The stream goes on after a failed operator, too. `request` may be NULL: then fcc_comm_error() and
 * fcc_comm_error_wait() report errors, and gemm's recv_rows must be NULL, or says what is expected (fcc_gemm_all_to_all_args). Up to 64 operators of a context may be in flight; the
 * next call waits for one of them (so threads that enqueue far ahead on several communicators should have a context each).
 * Operators of one rank run in the order of the calls, on whichever streams. A stream under capture into a graph is refused with
 * -EOPNOTSUPP and the reason, but for collectives that this process launches (below). On CUDA GPUs of one node, one for each rank: if all ranks enqueue the same noop, gemv or gemm repeatedly,
 * their own processes launch it after a while, as they launch prepared operators. That is faster; nothing else changes
 * (libfccclient(3), REPEATED OPERATORS).
 * Common errors: -EINVAL, -ERANGE, -ENOMEM, -EIO, -ETIMEDOUT, -ECONNABORTED, -ECONNRESET, -ESHUTDOWN.
 */

/* embedding_all_to_all: EmbeddingBag over tables sharded by table, then All-to-All from tables to samples.
 * (Punniyamurthy et al., SC24, section "embedding + All-to-All"; the layout of the inputs is that of FBGEMM's table-batched
 * embeddings and torch.nn.EmbeddingBag.)
 *
 * Rank r holds T_r tables (0 or more) of equal width D and pools them for the global batch of B samples. The batch is split
 * among the ranks in rank order: rank p owns batch_split[p] consecutive samples.
 * Rank p ends with out[s][t][d] for its own samples s, and for t over the tables of rank 0, then those of rank 1, ...
 *
 * Same on all ranks: B, D, dtype, batch_split, schedule. May differ: T_r, rows, indices, index dtype, pooling, weights, out's
 * buffer and offset.
 *
 * On streams this process launches the operator itself, in the way and under the conditions of gemm_all_to_all below: if a tensor has FCC_ADDRESS, which
 * then one has on all ranks, or if the stream is under capture. D is then at most 65536, and T_r * D below 2^31. A graph's replay reads the offsets and
 * indices, up to nnz, that are there then; table_rows and batch_split are those of the call. A wrong offset or index is an error of all ranks'
 * fcc_comm_error(). */
struct fcc_embedding_all_to_all_args {
    struct fcc_tensor tables;  /* [sum of table_rows][D], f32, f16 or bf16: all tables, concatenated by rows. D at least 1 */
    const int64_t *table_rows; /* [num_tables] rows of each table, 0 or more */
    int32_t num_tables;        /* T_r: 0 to FCC_MAX_TABLES */
    int32_t pooling;           /* enum fcc_pooling; the mean divides by the bag's number of indices */
    struct fcc_tensor indices; /* [nnz], i32 or i64: row numbers within the bag's table, bag by bag, table 0's bags first */
    struct fcc_tensor offsets; /* [T_r * B + 1], dtype of indices: bag (t, s) is indices[offsets[t*B+s]] up to, not including,
                                  indices[offsets[t*B+s+1]]. Not descending, the last at most nnz. An empty bag pools to 0 */
    struct fcc_tensor sample_weights; /* [nnz], f32: the weight of each index. Absent: all 1. Not with mean */
    int64_t batch;                    /* B: 0 or more */
    const int64_t *batch_split;       /* [nranks], sum B. NULL: even; the first (B modulo nranks) ranks have one sample more */
    struct fcc_tensor out; /* [batch_split[rank]][sum over ranks of T_r][D], dtype of tables, for results; any strides
                                         with a last stride of 1 and no overlap */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];  /* must be 0 */
};
#define FCC_MAX_TABLES 4096
int fcc_embedding_all_to_all(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args);
int fcc_embedding_all_to_all_start(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args, fcc_request **out);
int fcc_embedding_all_to_all_enqueue(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args, void *stream,
                                     fcc_request **out);

/* Epilogues: what gemv_all_reduce, gemm_all_reduce, gemm_reduce_scatter, gemm_all_to_all, all_gather_gemm and all_reduce do with their sums before and after they round them:
 *
 *   FCC_OP_epilogue(comm, &args, &epilogue), FCC_OP_epilogue_start(), FCC_OP_epilogue_enqueue()
 *
 * are FCC_OP(), FCC_OP_start() and FCC_OP_enqueue() with an epilogue; NULL: with none. Of each element, in f32 and in this order (what is
 * absent is left out; a struct of zeros is no epilogue):
 *
 *   1. the sum, plus the bias of its column, plus its residual
 *   2. with `norm` or `sum`: rounded to the dtype. `sum` gets this value
 *   3. the norm of its row of N such values: RMSNorm  v / sqrt(mean(v^2) + eps) * weight  (Zhang, Sennrich, 2019), or LayerNorm
 *      (v - mean(v)) / sqrt(mean((v - mean(v))^2) + eps) * weight + bias  (Ba, Kiros, Hinton, 2016)
 *   4. the activation; times silu(gate); times `scale`
 *   5. rounded to the dtype: the result
 *   6. `quantized` gets the result divided by its scale, rounded to e4m3 to nearest even, beyond 448 in magnitude as 448
 *
 * All ranks have the same stages and numbers: otherwise all get -EINVAL. `bias`, `residual`, `gate`, `norm_weight`, `norm_bias` and `sum` have the
 * dtype of the result.
 *
 * The all-reduces: each element is added up by one rank, its owner, which adds its own bias and residual, once, and, without norm and sum, has
 * its own gate. (On the GPUs of one node every rank may make all elements of a small result for itself.) So these must have the same values
 * on all ranks, as those of a tensor-parallel layer have; where they differ, it is not said whose values are used. From the norm on each rank
 * computes its own result, with its own weights. The residual may be the result itself, or `sum`: the same address and strides. Then the operator adds
 * to what is there. No other tensors of a call may overlap, of which the operator stores into one.
 *
 * gemm_all_to_all: each rank adds its own bias and residual to the rows that it computes, before they are sent, so the residual has
 * the rows of a, not those of c; so has the gate, which is allowed without norm and sum only. Norm, sum and quantized are of the rows that a rank
 * has received: `sum`, `quantized` and its scales have the rows of c. None may overlap a result. Not allowed without b.
 *
 * all_gather_gemm: all tensors are of the rank's own result, [M][N_r] and [N_r]; none may overlap a result. x_scale is of the rank's own rows, a.
 *
 * Factors in e4m3: the two factors of gemv_all_reduce (x, w), gemm_all_reduce, gemm_reduce_scatter, gemm_all_to_all and all_gather_gemm (a, b) may be f8e4m3, both or one of them, with and
 * without epilogue. The result is f32, f16 or bf16, and has the dtype of a factor that is not f8e4m3. An element stands for its value times its
 * scale; products of these are added in f32. `x_scale` has the scales of x or a, `w_scale` those of w or b, in f32; absent: all are 1. Its shape says
 * what shares one, of a factor as it is stored:
 *
 *   [1]                                        all elements
 *   [M] (x, a), [N] (w, b)                     a row of x, a and w; a column of b: what is one of the result
 *   [ceil(rows / 128)][ceil(columns / 128)]    a block of 128 x 128
 *   [M][ceil(K / 128)] (x, a)                  128 elements of a row
 *
 * Where two of these have the same shape, they mean the same. Other shapes, and scales of a factor that is not f8e4m3, are -EINVAL, as are ranks
 * whose factors have other dtypes, or of which only some have scales. K_r and the shapes of scales may differ. Every GPU takes them, by general kernels:
 * codes become numbers of a wider dtype that has their values, as they are loaded, so half the bytes are read. -EOPNOTSUPP: all_gather_gemm on
 * GPUs.
 *
 * Operators with epilogues cannot be prepared, and are not launched by the ranks' own processes when they are repeated. gemv_all_reduce,
 * gemm_all_to_all and all_reduce are launched by them on a stream, below, with all stages. all_reduce is then one kernel, for rows of up to some hundred
 * thousand elements, in which each rank gets all ranks' terms. Of the products what needs whole rows (norm, sum, quantized) is a kernel of its own behind
 * the product's, and gemm_all_to_all needs recv_rows for it. What fccd launches on GPUs has bias and residual only, and all_reduce no epilogue:
 * -EOPNOTSUPP. On GPUs products with an epilogue run on general kernels. */
enum fcc_norm { FCC_NO_NORM = 0, FCC_RMS_NORM = 1, FCC_LAYER_NORM = 2 };
/* GELU is v * Phi(v), GELU_TANH its approximation by tanh (Hendrycks, Gimpel, 2016); SILU is v / (1 + exp(-v)). */
enum fcc_activation { FCC_NO_ACTIVATION = 0, FCC_RELU = 1, FCC_GELU = 2, FCC_GELU_TANH = 3, FCC_SILU = 4 };
/* STATIC: quantized_scale is read. BY_ROW: it is written: the greatest magnitude of a row's result, NaNs aside, divided by 448 (1 where that is 0,
 * as of a row of zeros; not written where N is 0). */
enum fcc_quantization { FCC_NOT_QUANTIZED = 0, FCC_QUANTIZED_STATIC = 1, FCC_QUANTIZED_BY_ROW = 2 };
struct fcc_epilogue {
    struct fcc_tensor bias; /* [N] */
    struct fcc_tensor
        residual; /* all-reduces: [M][N]. gemm_reduce_scatter: as c. gemm_all_to_all: [M_r][N]. Last stride 1, as all below */
    struct fcc_tensor sum;             /* [M][N], stored into; in a buffer of this rank, as `quantized` and `quantized_scale` */
    struct fcc_tensor norm_weight;     /* [N]; absent: 1 */
    struct fcc_tensor norm_bias;       /* [N], of LayerNorm; absent: 0 */
    struct fcc_tensor gate;            /* the shape of residual */
    struct fcc_tensor quantized;       /* [M][N], f8e4m3, stored into */
    struct fcc_tensor quantized_scale; /* f32: [1] (static) or [M] (by row) */
    struct fcc_tensor x_scale;         /* f32: of x or a, where that is f8e4m3. Shapes are above */
    struct fcc_tensor w_scale;         /* f32: of w or b */
    uint32_t norm;                     /* enum fcc_norm */
    float norm_eps;                    /* 0 or more */
    uint32_t activation;               /* enum fcc_activation */
    float scale;                       /* 0: 1 */
    uint32_t quantization;             /* enum fcc_quantization */
    uint32_t reserved[7];              /* must be 0 */
};

/* gemv_all_reduce: y = sum over ranks r of x_r . w_r^T: a matrix-vector product (or a thin matrix product) split along K, then
 * an AllReduce. Partial sums are f32; they are added in a fixed order and rounded once, so every rank gets the same bits in
 * every run. (SC24, "GEMV + AllReduce": direct two-phase reduce-scatter and all-gather, each rank reducing its share of the
 * tiles.)
 *
 * Order of additions. On one node, and with FCC_SCHEDULE_FLAT: rank 0's partial sum, plus rank 1's, plus rank 2's, ...
 * Hierarchical, over several nodes: first the sum of each node's ranks, in rank order; then the nodes' sums, in the order of
 * the nodes' first ranks. So the ranks' placement on nodes may change the last bits of y; FCC_SCHEDULE_FLAT avoids that.
 * Without a route the sum is hierarchical if there are several nodes and M * N * 4 bytes * (ranks of the largest node - 1) is
 * 32768 or more.
 *
 * Same on all ranks: M, N, dtype, schedule. May differ: K_r (0 is allowed).
 *
 * On streams this process launches the operator itself, as it does collectives ("Collectives on streams", below; so it may be captured), where
 * these can be launched, the request is NULL, the schedule is auto, fused or, with FCC_ADDRESS, sequential, and either fcc_collectives_prepare() or a collective has been
 * called before, or a tensor has FCC_ADDRESS, which then it has on all ranks. x, w, y, bias and residual may lie anywhere, and may be others in each
 * call. A new M, N or K_r needs no agreement between the ranks; a rank's first call with it takes about a millisecond longer, and 100 KiB of its
 * GPU's memory, which are kept for the 128 shapes that were used last and for those that graphs have captured. Products with
 * more than some 2^20 elements of y are computed in parts, some columns each.
 *
 * There `sequential` is a product by cuBLAS, which the process has loaded or can load (libcublas.so.13 or .12, on all ranks: otherwise -EOPNOTSUPP), with
 * the sum and the epilogue behind it in one kernel. It takes up to 65536 rows. `auto` is `fused` for one row and `sequential` for more, where all ranks
 * have cuBLAS. Fused, partial sums travel in f32. Sequential, they are rounded to y's dtype first and added up in f32 in rank order, the same bits on all
 * ranks: in 16 bits an element's error grows by at most 2^-8 (bf16) or 2^-11 (f16) of the sum of the magnitudes of the ranks' partial sums.
 *
 * With factors in e4m3, and batch invariant ones (FCC_SCHEDULE_BATCH_INVARIANT), the ranks launch fccd's own kernels for any number of rows up to 65536;
 * `sequential` is -EINVAL there. More than 64 rows with factors in e4m3 are rounded before they are sent, as sequential ones are; batch invariant ones are
 * computed 64 rows at a time. */
struct fcc_gemv_all_reduce_args {
    struct fcc_tensor
        x; /* [M][K_r], f32, f16, bf16 or f8e4m3; M from 1 to 65536; on GPUs to 64, but on streams as above; last stride 1 */
    struct fcc_tensor w; /* [N][K_r], dtype of x, or one of the two is f8e4m3 ("Factors in e4m3", above); last stride 1 */
    struct fcc_tensor y; /* [M][N], dtype of x or w, not f8e4m3, for results; last stride 1, rows do not overlap */
    uint32_t schedule;   /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
#define FCC_GEMV_MAX_M 64       /* of what fccd launches on GPUs, of prepared ones, and on streams where cuBLAS is not */
#define FCC_GEMV_MAX_ROWS 65536 /* on cpu devices, and on streams: where cuBLAS multiplies, and others that are told above */
int fcc_gemv_all_reduce(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args);
int fcc_gemv_all_reduce_start(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_request **out);
int fcc_gemv_all_reduce_enqueue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, void *stream, fcc_request **out);
int fcc_gemv_all_reduce_epilogue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args,
                                 const struct fcc_epilogue *epilogue);
int fcc_gemv_all_reduce_epilogue_start(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args,
                                       const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_gemv_all_reduce_epilogue_enqueue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args,
                                         const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);

/* gemm_all_to_all: C_r = A_r . B_r, whose rows are sent to the ranks: the first send_rows[0] rows to rank 0, the next
 * send_rows[1] to rank 1, ... Rank p ends with c = the rows that rank 0 sent it, then those of rank 1, ...
 * (SC24, "GEMM + All-to-All"; the counts are those of MPI_Alltoallv.)
 *
 * Without b (b.buffer is NULL) C_r is A_r and K_r = N: an AllToAll of rows, which arrive bit for bit as they were sent.
 *
 * Same on all ranks: N, dtype, schedule. May differ: M_r, K_r, send_rows.
 *
 * On streams this process launches the operator itself, in the way and under the conditions of gemv_all_reduce, if a tensor has FCC_ADDRESS, which
 * then one has on all ranks, or if the stream is under capture. Other numbers of rows need no agreement between the ranks either. Rows from other
 * ranks land in memory of the communicator, from where the kernel moves them into c. In buffers, outside of graphs, fccd launches the operator:
 * then ranks store into each other's c. */
struct fcc_gemm_all_to_all_args {
    struct fcc_tensor a;      /* [M_r][K_r], f32, f16, bf16 or, with b, f8e4m3; last stride 1 */
    struct fcc_tensor b;      /* [K_r][N], dtype of a, or one of the two is f8e4m3; last stride 1; or absent */
    const int64_t *send_rows; /* [nranks], sum M_r, 0 or more each. NULL: equal (M_r must be a multiple of nranks) */
    struct fcc_tensor
        c; /* [at least the rows received][N], dtype of a or b, not f8e4m3, for results; last stride 1, rows do not overlap.
                                 Rows beyond those received are not written */
    int64_t *recv_rows; /* [nranks] or NULL: set to the number of rows received from each rank when the operator has finished.
                                 The array must stay valid until then. Where this process launches the operator it is read, during the
                                 call: the number of rows that this rank expects from each (-1: any); if others come, it is an error
                                 of all ranks */
    uint32_t schedule;  /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_gemm_all_to_all(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args);
int fcc_gemm_all_to_all_start(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_request **out);
int fcc_gemm_all_to_all_enqueue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, void *stream, fcc_request **out);
int fcc_gemm_all_to_all_epilogue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args,
                                 const struct fcc_epilogue *epilogue);
int fcc_gemm_all_to_all_epilogue_start(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args,
                                       const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_gemm_all_to_all_epilogue_enqueue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args,
                                         const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);

/* gemm_all_reduce: c = sum over ranks r of a_r . b_r: a matrix product of any size, split along K, then an AllReduce. Each element is
 * added in f32, in the order of gemv_all_reduce, and rounded once: all ranks get the same bits, under every schedule.
 *
 * Same on all ranks: M, N, dtype, schedule. May differ: K_r (0 is allowed). */
struct fcc_gemm_all_reduce_args {
    struct fcc_tensor a; /* [M][K_r], f32, f16, bf16 or f8e4m3; M at least 1; last stride 1 */
    struct fcc_tensor b; /* [K_r][N], dtype of a, or one of the two is f8e4m3; last stride 1 */
    struct fcc_tensor c; /* [M][N], dtype of a or b, not f8e4m3, for results; last stride 1, rows do not overlap */
    uint32_t schedule;   /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_gemm_all_reduce(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args);
int fcc_gemm_all_reduce_start(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args, fcc_request **out);
int fcc_gemm_all_reduce_enqueue(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args, void *stream, fcc_request **out);
int fcc_gemm_all_reduce_epilogue(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args,
                                 const struct fcc_epilogue *epilogue);
int fcc_gemm_all_reduce_epilogue_start(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args,
                                       const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_gemm_all_reduce_epilogue_enqueue(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args,
                                         const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);

/* On streams: gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm, without an epilogue, factors in e4m3 and batch invariance. This process launches them itself,
 * as it does gemv_all_reduces, where fcc_products_prepare() returns 0, if a tensor has FCC_ADDRESS, which then it has on all ranks, or the stream is
 * under capture. a, b, c and `gathered` may lie anywhere, and may be others in each call. The schedule is auto, fused or sequential, with or without
 * FCC_SCHEDULE_ANY_ORDER.
 *
 * The product is cuBLAS's (libcublas.so.13 or .12, libcublasLt), or fccd's. `fused`, of two ranks, in pieces: what the other rank needs is made, or sent, first, in a few pieces,
 * by copy engines, beside the product; own rows of a sum are computed onto what has arrived (T3, ASPLOS 2024). Or by tiles: one kernel of fccd's stores tiles at the other rank
 * as soon as it has multiplied them, and adds to its own what has come. That is so, unless FCC_FUSED says otherwise (libfccclient(3)), of f16 and bf16, on an H100 or H200
 * each, if M is at least 512, 1 MiB or more (gemm_all_reduce: 4) go to the other rank, and rows of what is exchanged (N of sums, else K) are multiples of 8 elements; and if of sums the
 * ranks' rows, from M of 1024 on, are at most a twelfth less than the next multiples of 256. A rank whose a or b begins, or
 * has rows, at addresses that are no multiples of 16 bytes copies them first, if that takes no more than 64 MiB; else it multiplies tiles by a slower kernel. all_gather_gemm's rows
 * come in the same way whether a rank multiplies them by tiles or by cuBLAS, which each decides for itself. Both ways, the other rank's partial sum is rounded to c's dtype before
 * it is added, in f32, and the sum is rounded once more; both ranks of a gemm_all_reduce get the same bits. `sequential`, and more than two ranks: the product and
 * the collective, one behind the other; then every partial sum is rounded. `auto`: by tiles where that can be; else fused where 4 MiB or more go to the other rank. A row of what is exchanged has at
 * most 512 KiB; in sequence, or on more than two ranks, the ranks' a of all_gather_gemm have at most 32 MiB together, unless `gathered` is there and dense, and this
 * rank's a at most as much, unless it is dense (-EOPNOTSUPP). Rows of a and b do not overlap (-EINVAL).
 * Fused products of several communicators that may run at the same time come in the same order on all ranks: otherwise they may wait for each other until the time limit. A product by tiles
 * waits while it fills the GPU, so that holds for it and for all other kernels that fill a GPU while they wait for another one. */

/* gemm_reduce_scatter: the sum over ranks r of a_r . b_r, a matrix product of any size, split along K, whose rows are split over the ranks: rank 0
 * gets the first rows[0] of them, rank 1 the next rows[1], ... (T3, ASPLOS 2024: "GEMM, then ReduceScatter" of a tensor-parallel layer.) Each
 * element is added in f32 in the order of gemv_all_reduce, or, with FCC_SCHEDULE_ANY_ORDER, as that says, and rounded once.
 *
 * Bias, residual and all other stages of an epilogue are those of the rank that owns a row: they concern its own rows, may differ from rank
 * to rank, and the residual, gate, `sum`, `quantized` and its scales have the rows of c.
 *
 * Same on all ranks: M, N, dtype, rows, schedule. May differ: K_r (0 is allowed). No other rank stores into c. */
struct fcc_gemm_reduce_scatter_args {
    struct fcc_tensor a; /* [M][K_r], f32, f16, bf16 or f8e4m3; last stride 1 */
    struct fcc_tensor b; /* [K_r][N], dtype of a, or one of the two is f8e4m3; last stride 1 */
    const int64_t
        *rows; /* [nranks], sum M, 0 or more each. NULL: M / nranks, and one more for each of the first M % nranks ranks */
    struct fcc_tensor
        c;             /* [this rank's rows][N], dtype of a or b, not f8e4m3, for results; last stride 1, rows do not overlap */
    uint32_t schedule; /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_gemm_reduce_scatter(fcc_comm *comm, const struct fcc_gemm_reduce_scatter_args *args);
int fcc_gemm_reduce_scatter_start(fcc_comm *comm, const struct fcc_gemm_reduce_scatter_args *args, fcc_request **out);
int fcc_gemm_reduce_scatter_enqueue(fcc_comm *comm, const struct fcc_gemm_reduce_scatter_args *args, void *stream,
                                    fcc_request **out);
int fcc_gemm_reduce_scatter_epilogue(fcc_comm *comm, const struct fcc_gemm_reduce_scatter_args *args,
                                     const struct fcc_epilogue *epilogue);
int fcc_gemm_reduce_scatter_epilogue_start(fcc_comm *comm, const struct fcc_gemm_reduce_scatter_args *args,
                                           const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_gemm_reduce_scatter_epilogue_enqueue(fcc_comm *comm, const struct fcc_gemm_reduce_scatter_args *args,
                                             const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);
/* all_gather_gemm: c_r = A . b_r, where A is the ranks' a, rank 1's rows below rank 0's and so on: an AllGather, then a matrix product,
 * split along N. Rows are multiplied while others are under way. `gathered`, if it is there, gets A itself. The same bits in every run and under every
 * schedule.
 *
 * Same on all ranks: M (the sum of all M_r), K, dtypes, schedule, whether `gathered` is there. May differ: M_r, N_r (0 is allowed).
 *
 * On cpu devices the ranks of a node read each other's a where it lies. A rank's a is its own again when the operator has finished there. What
 * fccd launches on GPUs has an epilogue of bias and residual only. */
struct fcc_all_gather_gemm_args {
    struct fcc_tensor a; /* [M_r][K], f32, f16, bf16 or f8e4m3; last stride 1, rows do not overlap */
    struct fcc_tensor b; /* [K][N_r], dtype of a, or one of the two is f8e4m3; last stride 1 */
    /* [M][K], dtype of a, in a buffer of this rank and apart from all ranks' a; last stride 1, rows do not overlap; or absent */
    struct fcc_tensor gathered;
    struct fcc_tensor c; /* [M][N_r], dtype of a or b, not f8e4m3, for results; last stride 1, rows do not overlap */
    uint32_t schedule;   /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_all_gather_gemm(fcc_comm *comm, const struct fcc_all_gather_gemm_args *args);
int fcc_all_gather_gemm_start(fcc_comm *comm, const struct fcc_all_gather_gemm_args *args, fcc_request **out);
int fcc_all_gather_gemm_enqueue(fcc_comm *comm, const struct fcc_all_gather_gemm_args *args, void *stream, fcc_request **out);
int fcc_all_gather_gemm_epilogue(fcc_comm *comm, const struct fcc_all_gather_gemm_args *args,
                                 const struct fcc_epilogue *epilogue);
int fcc_all_gather_gemm_epilogue_start(fcc_comm *comm, const struct fcc_all_gather_gemm_args *args,
                                       const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_all_gather_gemm_epilogue_enqueue(fcc_comm *comm, const struct fcc_all_gather_gemm_args *args,
                                         const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);

/* ---- collectives: operators that compute nothing. Vectors are tensors of one dimension with stride 1, of any size --------- */

/* How all_reduce, reduce_scatter and reduce combine the ranks' elements: with rank 0's, rank 1's, rank 2's, ... in this order, or over
 * several nodes in the order of gemv_all_reduce, so that all ranks get the same bits in every run. f16 and bf16 are combined in f32 and
 * rounded once; integers wrap around. FCC_MIN and FCC_MAX of a NaN are NaN, and -0 is below +0. FCC_AVERAGE divides the sum by the number
 * of ranks. */
enum fcc_reduction {
    FCC_SUM = 0,
    FCC_PRODUCT = 1,
    FCC_MIN = 2,
    FCC_MAX = 3,
    FCC_AVERAGE = 4, /* f32, f64, f16, bf16 */
    FCC_AND = 5,     /* bitwise, as the next two: u8, i8, i32, i64 */
    FCC_OR = 6,
    FCC_XOR = 7,
};

/* Collectives on streams. fcc_NAME_enqueue() with `out` (the request) NULL, where each rank of the communicator has a CUDA GPU of its own on one
 * node: this process launches the operator's kernel itself, as for prepared operators, from the first call on. Tensors may lie anywhere
 * (FCC_ADDRESS), and the stream may be captured into a CUDA graph, which may be replayed any number of times. Ranks call, or replay,
 * the same collectives in the same order; nothing has to be agreed on for another size. A graph keeps what it uses alive: when the
 * communicator is destroyed, its replays end at once.
 * Streams, and graphs, must order all collectives, and all products that this process launches, of one
 * communicator on a rank; two that run at the same time end the communicator. They may run beside collectives and operators of other communicators.
 *
 * Errors. What is wrong with this rank's arguments is returned, and fcc_comm_error() of the other ranks has it, too: the kernel gives the run
 * up on all ranks. Where ranks differ, it is found by the kernels, and fcc_comm_error() of all ranks says who has what. (A rank whose own run
 * could end before another rank found that, as where only one of all_to_all's receivers has too little room, has it with its next run;
 * fcc_comm_error_wait() asks the GPU.) After either the communicator goes on; what the run has left in its results is undefined. Death of a
 * rank, fcc_comm_abort() and the time limit end
 * runs and replays within 100 ms; the next call says who and why. (A run that a late rank still joins meanwhile is finished by all ranks, and
 * its results are right.)
 *
 * fcc_collectives_prepare() takes what they need: control memory of some MB for each other rank, and 176 MiB for products and epilogues, which all collectives
 * and products of the communicator use, however many shapes and graphs there are.
 * It is collective, as an operator. The first collective on a stream does it otherwise. 0; -EOPNOTSUPP: this communicator's ranks cannot
 * launch collectives, with the reason; or the errors of FCC_OP_prepare below.
 *
 * Elsewhere (several nodes, several ranks on a GPU, HIP), and with a request, fccd launches collectives as any operator: tensors lie in
 * buffers, and the stream is not under capture. Otherwise the call is -EOPNOTSUPP, and says why the ranks cannot launch it. */
int fcc_collectives_prepare(fcc_comm *comm);
/* The same for gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm, which besides need that all ranks can load cuBLAS: otherwise -EOPNOTSUPP. */
int fcc_products_prepare(fcc_comm *comm);

/* all_reduce: out = the ranks' in, combined (MPI_Allreduce). With an epilogue, of f32, f16 and bf16, the vector is a matrix of M rows of N
 * elements: the last dimension of the epilogue's tensors is N, and without any the vector is one row.
 *
 * In all collectives dtype and schedule are the same on all ranks. `out` lies in memory for results. `in` and `out` may share memory only
 * where it is said: then in place, that is, exactly there. */
struct fcc_all_reduce_args {
    struct fcc_tensor in;  /* [N], any dtype but the 8-bit floats */
    struct fcc_tensor out; /* [N], dtype of in, for results. In place: in is out */
    int64_t reduction;     /* enum fcc_reduction */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_all_reduce(fcc_comm *comm, const struct fcc_all_reduce_args *args);
int fcc_all_reduce_start(fcc_comm *comm, const struct fcc_all_reduce_args *args, fcc_request **out);
int fcc_all_reduce_enqueue(fcc_comm *comm, const struct fcc_all_reduce_args *args, void *stream, fcc_request **out);
int fcc_all_reduce_epilogue(fcc_comm *comm, const struct fcc_all_reduce_args *args, const struct fcc_epilogue *epilogue);
int fcc_all_reduce_epilogue_start(fcc_comm *comm, const struct fcc_all_reduce_args *args, const struct fcc_epilogue *epilogue,
                                  fcc_request **out);
int fcc_all_reduce_epilogue_enqueue(fcc_comm *comm, const struct fcc_all_reduce_args *args, const struct fcc_epilogue *epilogue,
                                    void *stream, fcc_request **out);

/* reduce_scatter: of the ranks' in, combined, the first N_0 elements are rank 0's out, the next N_1 rank 1's, ... (MPI_Reduce_scatter).
 * May differ: N_r, whose sum is N; 0 is allowed. */
struct fcc_reduce_scatter_args {
    struct fcc_tensor in;  /* [N], any dtype but the 8-bit floats */
    struct fcc_tensor out; /* [N_r], dtype of in, for results. In place: out is its part of in */
    int64_t reduction;     /* enum fcc_reduction */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_reduce_scatter(fcc_comm *comm, const struct fcc_reduce_scatter_args *args);
int fcc_reduce_scatter_start(fcc_comm *comm, const struct fcc_reduce_scatter_args *args, fcc_request **out);
int fcc_reduce_scatter_enqueue(fcc_comm *comm, const struct fcc_reduce_scatter_args *args, void *stream, fcc_request **out);

/* all_gather: out = rank 0's in, then rank 1's, ... (MPI_Allgatherv). May differ: N_r, whose sum is N; 0 is allowed. */
struct fcc_all_gather_args {
    struct fcc_tensor in;  /* [N_r], any dtype */
    struct fcc_tensor out; /* [N], dtype of in, for results. In place: in is its part of out */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_all_gather(fcc_comm *comm, const struct fcc_all_gather_args *args);
int fcc_all_gather_start(fcc_comm *comm, const struct fcc_all_gather_args *args, fcc_request **out);
int fcc_all_gather_enqueue(fcc_comm *comm, const struct fcc_all_gather_args *args, void *stream, fcc_request **out);

/* all_to_all: the first send_counts[0] rows of in go to rank 0, the next send_counts[1] to rank 1, ... Rank p ends with out = what
 * rank 0 sent it, then what rank 1 sent it, ... (MPI_Alltoallv). A row is row_elements elements, and all counts are in rows. (Errors about what
 * comes, or does not fit, are in elements.) Same on all ranks: row_elements. May differ: N_r, the counts, and which arrays of counts there are.
 *
 * Counts in memory of the rank's device, as a router's kernel has stored them there: device_send_counts in the place of send_counts. They are
 * read when the run begins, and again in each replay of a CUDA graph, and the host neither knows nor waits for them. in and out then have
 * room for the most that may be sent and received; their lengths alone decide how the kernel is launched. What the rank has received stands
 * in out without gaps, and how much of it is from each rank is stored into device_receive_counts, for kernels that follow on the stream. Counts that
 * are negative, or together more than in has room for, end the run on all ranks with an error that names the rank and the count
 * (fcc_comm_error()); so does more than fits into out. The arrays share no memory with in, out or each other, are aligned to 8, and stay valid until
 * the run has ended and, where a graph has captured it, as long as that is replayed, also when the communicator has ended (buffers of fccd are
 * kept by the graph).
 * They are for collectives on streams that this process launches (above), where they lie anywhere that the GPU can address; and for ranks on cpu
 * devices, where they lie in memory of this process: there the call reads the counts, and the received ones are stored as receive_counts would
 * be. Elsewhere all ranks get -EOPNOTSUPP. */
struct fcc_all_to_all_args {
    struct fcc_tensor in; /* [N_r], any dtype */
    /* [nranks], together N_r, 0 or more each. NULL: equal (N_r must be a multiple of nranks rows) */
    const int64_t *send_counts;
    struct fcc_tensor
        out; /* [at least the elements received], dtype of in, for results. Elements beyond those are not written */
    /* [nranks] or NULL: what must come from each rank, 0 or more each, not more than out has together. If something else comes, all ranks
     * get an error */
    const int64_t *expected_counts;
    int64_t *receive_counts; /* [nranks] or NULL: set to the number of rows received from each rank when the operator has
                                   finished. The array must stay valid until then */
    /* In memory of the rank's device: [nranks], together at most N_r, or NULL. send_counts is NULL then */
    const int64_t *device_send_counts;
    int64_t *
        device_receive_counts; /* [nranks] or NULL: set to the number of rows received from each rank. receive_counts is NULL then */
    int64_t row_elements;      /* 0: 1 */
    uint32_t schedule;         /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_all_to_all(fcc_comm *comm, const struct fcc_all_to_all_args *args);
int fcc_all_to_all_start(fcc_comm *comm, const struct fcc_all_to_all_args *args, fcc_request **out);
int fcc_all_to_all_enqueue(fcc_comm *comm, const struct fcc_all_to_all_args *args, void *stream, fcc_request **out);

/* broadcast: out = the root's in (MPI_Bcast). Same on all ranks: N, root. */
struct fcc_broadcast_args {
    struct fcc_tensor in;  /* the root: [N], any dtype; other ranks: absent */
    struct fcc_tensor out; /* [N], dtype of in, for results. In place: the root's in is its out */
    int64_t root;          /* a rank */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_broadcast(fcc_comm *comm, const struct fcc_broadcast_args *args);
int fcc_broadcast_start(fcc_comm *comm, const struct fcc_broadcast_args *args, fcc_request **out);
int fcc_broadcast_enqueue(fcc_comm *comm, const struct fcc_broadcast_args *args, void *stream, fcc_request **out);

/* reduce: the root's out = the ranks' in, combined (MPI_Reduce). Same on all ranks: N, root, reduction. */
struct fcc_reduce_args {
    struct fcc_tensor in;  /* [N], any dtype but the 8-bit floats */
    struct fcc_tensor out; /* the root: [N], dtype of in, for results. In place: in is out. Other ranks: absent */
    int64_t root;          /* a rank */
    int64_t reduction;     /* enum fcc_reduction */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_reduce(fcc_comm *comm, const struct fcc_reduce_args *args);
int fcc_reduce_start(fcc_comm *comm, const struct fcc_reduce_args *args, fcc_request **out);
int fcc_reduce_enqueue(fcc_comm *comm, const struct fcc_reduce_args *args, void *stream, fcc_request **out);

/* gather: the root's out = rank 0's in, then rank 1's, ... (MPI_Gatherv). Same on all ranks: root. May differ: N_r, whose sum is N. */
struct fcc_gather_args {
    struct fcc_tensor in;  /* [N_r], any dtype */
    struct fcc_tensor out; /* the root: [N], dtype of in, for results. In place: in is its part of out. Other ranks: absent */
    int64_t root;          /* a rank */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_gather(fcc_comm *comm, const struct fcc_gather_args *args);
int fcc_gather_start(fcc_comm *comm, const struct fcc_gather_args *args, fcc_request **out);
int fcc_gather_enqueue(fcc_comm *comm, const struct fcc_gather_args *args, void *stream, fcc_request **out);

/* scatter: the first N_0 elements of the root's in are rank 0's out, the next N_1 rank 1's, ... (MPI_Scatterv). Same on all ranks: root.
 * May differ: N_r, whose sum is N. */
struct fcc_scatter_args {
    struct fcc_tensor in;  /* the root: [N], any dtype; other ranks: absent */
    struct fcc_tensor out; /* [N_r], dtype of in, for results. In place: the root's out is its part of in */
    int64_t root;          /* a rank */
    uint32_t schedule;     /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_scatter(fcc_comm *comm, const struct fcc_scatter_args *args);
int fcc_scatter_start(fcc_comm *comm, const struct fcc_scatter_args *args, fcc_request **out);
int fcc_scatter_enqueue(fcc_comm *comm, const struct fcc_scatter_args *args, void *stream, fcc_request **out);

/* send_receive: in goes to the destination, and what the source sends comes into out (MPI_Sendrecv). All ranks of the communicator call it,
 * also those that neither send nor receive. If rank r's destination is d, rank d's source is r. */
struct fcc_send_receive_args {
    struct fcc_tensor in;           /* [N_r], any dtype; absent without a destination */
    struct fcc_tensor out;          /* [at least the source's N], dtype of in, for results; absent without a source */
    int64_t destination;            /* a rank; -1: none */
    int64_t source;                 /* a rank; -1: none */
    const int64_t *expected_counts; /* [nranks] or NULL: as of all_to_all: what must come from the source; 0 from all others */
    int64_t *receive_counts;        /* [nranks] or NULL: as of all_to_all */
    uint32_t schedule;              /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_send_receive(fcc_comm *comm, const struct fcc_send_receive_args *args);
int fcc_send_receive_start(fcc_comm *comm, const struct fcc_send_receive_args *args, fcc_request **out);
int fcc_send_receive_enqueue(fcc_comm *comm, const struct fcc_send_receive_args *args, void *stream, fcc_request **out);

/* Many at once, as gradient buckets need it: n collectives of one kind that follow each other, each with its own arguments, without
 * waiting for one before the next begins. They return when all have finished: 0, or the first one's error. Errors: as of each; -EINVAL (n,
 * args), on this rank only. */
int fcc_all_reduce_many(fcc_comm *comm, const struct fcc_all_reduce_args args[], int n);
int fcc_reduce_scatter_many(fcc_comm *comm, const struct fcc_reduce_scatter_args args[], int n);
int fcc_all_gather_many(fcc_comm *comm, const struct fcc_all_gather_args args[], int n);
int fcc_all_to_all_many(fcc_comm *comm, const struct fcc_all_to_all_args args[], int n);
int fcc_broadcast_many(fcc_comm *comm, const struct fcc_broadcast_args args[], int n);
int fcc_reduce_many(fcc_comm *comm, const struct fcc_reduce_args args[], int n);
int fcc_gather_many(fcc_comm *comm, const struct fcc_gather_args args[], int n);
int fcc_scatter_many(fcc_comm *comm, const struct fcc_scatter_args args[], int n);
int fcc_send_receive_many(fcc_comm *comm, const struct fcc_send_receive_args args[], int n);
/* Many at once on a stream: fcc_NAME_enqueue() of each, in their order, with `out` NULL. Neither the host nor the stream waits between two of
 * them: where this process launches collectives, their kernels follow each other, and the stream may be under capture; elsewhere they are
 * a group (fcc_group_begin()). Each takes its place on all ranks, also behind one with an error. 0, or the first error that a call
 * returned; fcc_comm_error() has what the runs find. Errors: as of each; -EINVAL (n, args), on this rank only. */
int fcc_all_reduce_many_enqueue(fcc_comm *comm, const struct fcc_all_reduce_args args[], int n, void *stream);
int fcc_reduce_scatter_many_enqueue(fcc_comm *comm, const struct fcc_reduce_scatter_args args[], int n, void *stream);
int fcc_all_gather_many_enqueue(fcc_comm *comm, const struct fcc_all_gather_args args[], int n, void *stream);
int fcc_all_to_all_many_enqueue(fcc_comm *comm, const struct fcc_all_to_all_args args[], int n, void *stream);
int fcc_broadcast_many_enqueue(fcc_comm *comm, const struct fcc_broadcast_args args[], int n, void *stream);
int fcc_reduce_many_enqueue(fcc_comm *comm, const struct fcc_reduce_args args[], int n, void *stream);
int fcc_gather_many_enqueue(fcc_comm *comm, const struct fcc_gather_args args[], int n, void *stream);
int fcc_scatter_many_enqueue(fcc_comm *comm, const struct fcc_scatter_args args[], int n, void *stream);
int fcc_send_receive_many_enqueue(fcc_comm *comm, const struct fcc_send_receive_args args[], int n, void *stream);

/* noop: a barrier of all ranks. It measures the latency of a request through the daemon. */
int fcc_noop(fcc_comm *comm);
int fcc_noop_start(fcc_comm *comm, fcc_request **out);
int fcc_noop_enqueue(fcc_comm *comm, void *stream, fcc_request **out);

/* For bindings and libraries above this one that check arguments themselves: tell the other ranks that this rank's next
 * operator fails. `op` is its name: "gemv_all_reduce", "gemv_all_reduce_prepare", "fcc_buffer_alloc" (a symmetric one).
 * `status` is a negative errno value; `reason` names the argument, its value and what is allowed. The failed operator takes its
 * place in the rank's order, so the other ranks' operator of that place gets the same error, and *out finishes with it.
 * Errors: -EINVAL (operator, status, reason), -ENOMEM, -ECONNRESET. */
int fcc_refuse_start(fcc_comm *comm, const char *op, int status, const char *reason, fcc_request **out);
/* The same for a collective or product on a stream that this process launches (fcc_collectives_prepare(), or fcc_products_prepare(), returns 0). The failed collective takes its
 * place among this rank's collectives on streams: fcc_comm_error() of the other ranks has the reason's first 159 characters, with -EINVAL,
 * but for ranks that have refused the same collective, or failed in the call.
 * 0; errors: -EINVAL (operator, reason), -EOPNOTSUPP (this process does not launch collectives), or what has ended the communicator. */
int fcc_refuse_enqueue(fcc_comm *comm, const char *op, const char *reason, void *stream);

/* For bindings: a description of this library's operators, so that a binding need not know each operator's struct. It has a
 * line for each operator: the name; "never", "repeated" or "prepared" (FCC_OP_prepare exists); then the members of struct
 * FCC_OP_args, all and in their order, each as NAME:KIND. The kinds:
 *   input, result, shared: a struct fcc_tensor. shared: a result that other ranks always store into. "input?": it may be absent
 *   i32, i64:              a number
 *   numbers:               const int64_t *. "numbers?": it may be NULL
 *   values:                int64_t *, [nranks] or NULL: set when the operator has finished
 *   device:                a pointer to [nranks] int64_t in memory of the rank's device, or NULL
 *   schedule:              uint32_t schedule, reserved[7]; always last
 * Example: "gemv_all_reduce prepared x:input w:input y:result schedule:schedule". An operator without arguments has no
 * members. */
const char *fcc_operators(void);

/* Groups: operators that directly follow each other on streams. Between two operators a stream waits for the end of the first
 * and signals that it has reached the second; that takes longer than a small operator. In a group each stream waits only once.
 * Operators that this thread enqueues between fcc_group_begin() and fcc_group_end() begin, as always, after the work that was
 * enqueued before them on their stream, and in the order of the calls; but the streams wait for these operators only at the
 * group's end. So an operator may read what an earlier operator of the group has stored in this rank's memory. Other work that
 * is enqueued on the streams within the group must not use the operators' results, change their inputs, or destroy the stream.
 * Each rank may group as it likes. Groups may be nested; the outermost one counts. Operators that are not enqueued on streams
 * are not affected. Streams wait earlier if they and fccd do not synchronize through GPU memory (libfccclient(3)), and from the
 * 65th operator of a group on. A group ends in the thread that began it, and before its contexts are disconnected.
 * fcc_group_end: -EINVAL without a group; -EIO: a stream could not be made to wait; all operators run nevertheless. */
void fcc_group_begin(void);
int fcc_group_end(void);

/* Prepared operators, for ranks on CUDA GPUs: persistent collectives in MPI's words. The daemon checks the arguments of all
 * ranks, makes the plans and the memory, and supervises. Each rank's own process launches its kernel onto its own stream, so a
 * run needs no hand-over between processes: it costs one launch, with MPS or without. The arguments are fixed: each run reads
 * the inputs as they are when the stream reaches it, and stores into the same result.
 *
 * FCC_OP_prepare is collective: all ranks call it in the same order relative to their other operators. It returns when all
 * ranks are ready. `args` may be freed then; the buffers must not be freed before *out is. *out belongs to the caller until
 * fcc_prepared_free() or fcc_comm_destroy(). The schedule is fused or sequential; auto is fused, unless sequential
 * was measured to be clearly faster (others are -EINVAL). gemm's recv_rows is set when the call returns.
 *
 * Runs. Every rank enqueues each prepared operator equally often. The n-th runs of all ranks belong together. A run begins
 * after the work already on its rank's stream, and work enqueued later sees its result. Runs and other operators of one stream
 * have the stream's order, and that order must be the same on all ranks. The caller orders runs on different streams of a rank
 * by events. A run's kernel waits for the other ranks, at most for the communicator's time limit. A failed run leaves its
 * result undefined. fccctl comms shows the ranks that have not arrived. fccctl trace does not show runs.
 *
 * CUDA graphs. fcc_prepared_enqueue() on a stream under capture adds a run to the graph, and is no run itself. Each replay is one
 * run for each that was captured: graphs may be replayed any number of times, by turns, and between runs that are enqueued, and
 * other ranks may replay, or enqueue, the runs that belong to them. Any capture mode is allowed. Runs of one operator must never
 * be under way at the same time, as those of two graphs on two streams, or of two branches of a graph, would be without events
 * between them: then the communicator ends on all ranks with -EINVAL, at the latest when these runs end. A graph keeps what its
 * operators use: fcc_prepared_free(), fcc_buffer_free(), fcc_comm_destroy() and fcc_disconnect() may be called before the graph
 * is destroyed. They let its later replays end at once, with undefined results, and the memory is freed by the library's first
 * such call, or fcc_OP_prepare(), after the communicator's last graph is gone. Replays end at once, too, when the communicator
 * has ended; the status word, fcc_prepared_enqueue() or any other call says why. Not captured are operators that are not
 * prepared (-EINVAL).
 *
 * If a rank's process dies while its kernel runs under MPS, all contexts of that MPS server end (libfccclient(3)), and the job
 * gets -ECONNRESET. When the communicator ends (a rank died, a time limit, an abort), all kernels return and the streams go on.
 *
 * Errors: those of the operator. -EOPNOTSUPP: the communicator spans nodes, is not on CUDA GPUs, has two ranks on one GPU, or
 * its GPUs' memory cannot be shared by file descriptors. -ENODEV, -EIO: a rank's process cannot load fccd's plug-in, or its
 * driver fails; then no rank has the operator. -ENOMEM: a context has FCC_PREPARED_MAX prepared operators already. -EMFILE. */
#define FCC_PREPARED_MAX 64
int fcc_noop_prepare(fcc_comm *comm, fcc_prepared **out); /* a barrier of the ranks' streams */
int fcc_gemv_all_reduce_prepare(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_prepared **out);
int fcc_gemm_all_to_all_prepare(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_prepared **out);
/* Enqueue one run on the stream (cudaStream_t, CUstream; NULL is the legacy default stream), or add it to the graph into which
 * the stream is captured. Does not wait. A call that fails has enqueued nothing, and may be repeated. If it is not repeated, and
 * another rank's run has waited for this one for a second, the communicator ends on all ranks with the call's error. (A call
 * that fails under capture concerns no other rank.) Errors: -EINVAL: the stream's capture has failed before; -ENOMEM; -EIO; once
 * the communicator has ended, the value of its status word: -ECONNABORTED, -ETIMEDOUT, ... */
int fcc_prepared_enqueue(fcc_prepared *prepared, void *stream);
/* Free a prepared operator. Not collective. The caller makes sure that this process's streams have finished its runs; graphs may
 * be replayed later. NULL is allowed. */
void fcc_prepared_free(fcc_prepared *prepared);

/* The result of operators that were enqueued without a request: 0, or the first error since the last call, which clears it.
 * Covers operators whose completion has arrived, and does not wait: a stream may pass an operator a moment before its
 * completion arrives. If the communicator's end has ended collectives and products that this process has launched, so that their
 * results are undefined, that end is their error, once. Runs of prepared operators that it has ended are not among them: the status
 * word, fcc_prepared_enqueue() and every operator that is called next have it. */
int fcc_comm_error(fcc_comm *comm);
/* fcc_comm_error() for a program that has synchronized its streams: covers all operators that streams had passed when it was
 * called, and waits for their completions. It waits at most timeout_ms (then -EAGAIN, and no error is cleared) or, with -1, as
 * long as an operator may take (then -ETIMEDOUT). It takes longer than fcc_comm_error() because it may have to ask the GPU;
 * -EIO if the GPU does not answer. */
int fcc_comm_error_wait(fcc_comm *comm, int timeout_ms);

/* ---- requests ------------------------------------------------------------------------------------------------ */

/* *done = 1 if the request has finished, successfully or not; else 0. Does not wait. */
int fcc_request_test(fcc_request *request, int *done);

/* Wait for the request, at most timeout_ms (-1: until it finishes or a time limit of the daemon or the library ends it).
 * Returns the operator's result, or -EAGAIN if it is still running. May be called again, with the same result. */
int fcc_request_wait(fcc_request *request, int timeout_ms);

/* Free the request. An operator that is still running continues without it. NULL is allowed. */
void fcc_request_free(fcc_request *request);

/* ---- programs ------------------------------------------------------------------------------------------------ */

/* Programs of computation and exchange, as texts (client/PROGRAMS.md teaches the language). Ranks on cpu devices and on the GPUs of one node run them: each step of the scheduled
 * program is an operator, which takes its turn among the communicator's operators.
 *
 * fcc_program_open() is collective: all ranks bring the same text and the same sizes. It checks the program, carries out its schedule, and allocates
 * what the program needs between its steps. If a rank's text is wrong, or ranks' texts differ, all ranks get the error, which names the line. The
 * text need not end with a NUL; `sizes` are the program's sizes without those that keep the value of the text.
 *
 * Then each rank says where its tensors lie (fcc_program_tensor()) and what its scalars are (fcc_program_scalar()), which stays so until it is said
 * anew, and all ranks call fcc_program_run(), which returns when this rank's results are complete. A tensor is dense, has the dtype of its
 * declaration and the elements of this rank's part: all of a local or replicated tensor, and of a sliced one the indices [r * n / R, (r + 1) * n / R) of
 * its dimension on rank r of R. Those that other ranks store into (fcc_program_shares()) lie in a buffer for results; all others in any buffer. Tensors
 * of one program do not overlap. All ranks' scalars have the same values.
 *
 * A program whose ranks are groups (`groups S`) has a communicator for each, which fcc_program_open() makes and fcc_program_close() ends; R is then the
 * number of ranks in a group, and r this rank's place in its own; scalars may differ between groups. No such program's tensor need lie in a buffer for results.
 *
 * fcc_program_close() is not collective; NULL is allowed. A communicator's programs are closed before it is destroyed.
 * Errors: -EINVAL (with line and column), -EOPNOTSUPP (an operation that nothing runs yet, by its line; ranks on the GPUs of several nodes; an fccd older than the
 * library, whose programs are others), -ENOENT (no parameter of this
 * name), and those of operators. */
typedef struct fcc_program fcc_program;
struct fcc_program_size {
    const char *name;
    int64_t value;
};
int fcc_program_open(fcc_comm *comm, const char *text, size_t length, const struct fcc_program_size sizes[], int nsizes,
                     fcc_program **out);
int fcc_program_tensor(fcc_program *program, const char *name, const struct fcc_tensor *tensor);
/* Of a program with scattered tensors: how many elements each of these has, in their order, which is the same on all ranks; n is that of the
 * declaration, and together they have the declaration's elements. Said before all that follows, and again where it changes. */
int fcc_program_table(fcc_program *program, const int64_t elements[], int n);
/* Where the tensors of a scattered parameter lie: apart from each other, in one buffer, in any order; no tensor of another parameter that is stored
 * into lies between them. Where they lie one behind the other without a gap, fcc_program_tensor() gives them as one; all ranks give a parameter in the
 * same way. */
int fcc_program_tensors(fcc_program *program, const char *name, const struct fcc_tensor tensors[], int n);
int fcc_program_scalar(fcc_program *program, const char *name, double value);
int fcc_program_run(fcc_program *program);

/* Bound programs, for ranks on CUDA GPUs of one node, one rank on each: the ranks' own processes launch the steps, on their streams and in CUDA graphs,
 * as they launch prepared operators (above, whose rules hold: each rank runs the program equally often, runs are never under way at the same time, what
 * a graph uses stays, deaths, limits and aborts end all kernels). Steps are what is done with elements, also with the sum over the ranks before, and
 * collectives and products, which this process launches as it does those that are called (a sum of gemm's products has no bias and no residual here,
 * and may have other last bits than fccd's). A program with another step is refused, by its line.
 *
 * fcc_program_prepare() is collective. It waits until the kernels of the steps are compiled, side by side, and loads them into this process, which may wait for what
 * this process's GPU does: no kernel there may wait for what comes after the call. Tensors and scalars must be given before. Where tensors lie is then
 * fixed: if a tensor is given elsewhere the program is to be prepared anew, which ends runs of graphs that were captured before. A tensor that no other rank
 * reads or stores into may lie anywhere (FCC_ADDRESS); what is added up over the ranks lies in any buffer, and what they store into in one for results. Buffers
 * are not freed before the program is closed or prepared anew.
 *
 * fcc_program_enqueue() puts a run onto the stream, or adds it to the graph into which the stream is captured, and does not wait. If it fails after some of
 * the steps are on the stream, the communicator ends.
 *
 * Scalars reach the GPU in the order of a stream, and a run uses those that came last, also a run of a graph. fcc_program_enqueue() brings those that have
 * changed, but not under capture; fcc_program_scalars_enqueue() brings them by itself, for replays that are put onto the stream later. Captured, it adds the
 * scalars as they are now to the graph. All ranks give the same scalars to the runs that belong together.
 *
 * Errors: those of FCC_OP_prepare, and -EOPNOTSUPP with the reason: a step that cannot be bound, its kernel cannot be compiled (no compiler), or tensors of a
 * step share memory. -ETIMEDOUT: it was not compiled in time. All ranks get the errors of fcc_program_prepare(). -EINVAL: the program is not prepared. */
int fcc_program_prepare(fcc_program *program);
int fcc_program_enqueue(fcc_program *program, void *stream);
int fcc_program_scalars_enqueue(fcc_program *program, void *stream);

/* Guarded programs, whose ranks compare each run before they make it. Nobody does that for a program that fcc_program_prepare() has prepared: where a rank runs another one, or none,
 * the others wait until the time limit ends the communicator. A run of a guarded one begins with a small kernel that is a collective among those that this process launches, and so
 * in one order with them. If the ranks' next ones differ (the program, its sizes, its scalars, another collective), none of them runs, no tensor changes, and all ranks get the error
 * of fcc_comm_error(), which names both; the communicator goes on. It takes one small kernel for each run, and one for each of its steps.
 *
 * fcc_program_prepare_guarded() takes the place of fcc_program_prepare(), on all ranks. Errors, on all ranks: those of that, and -EOPNOTSUPP: the program has groups, or a
 * step behind one that looks up rows of tables.
 * fcc_program_refuse_enqueue() takes the place of fcc_program_enqueue() where this rank cannot make a run that the others make: it is none on all ranks, and the others
 * get the reason. Nothing happens under capture. A graph's runs have the scalars of the GPU, so they are compared without, and only with those of graphs: either all ranks replay
 * a run, or none. A graph is replayed by all ranks also when the program has been closed. As with collectives, streams order a communicator's guarded runs and collectives. */
int fcc_program_prepare_guarded(fcc_program *program);
int fcc_program_refuse_enqueue(fcc_program *program, const char *reason, void *stream);

/* The elements of this rank's part of a parameter, or a negative errno value. */
int64_t fcc_program_elements(const fcc_program *program, const char *name);
/* 1: other ranks store into the parameter's tensor, which lies in a buffer for results. 0: it lies in any buffer. Or a negative errno value. */
int fcc_program_shares(const fcc_program *program, const char *name);
/* The scheduled program as text. It belongs to the program. */
const char *fcc_program_text(const fcc_program *program);
void fcc_program_close(fcc_program *program);
/* A program as text, without a communicator. nranks 0: as it is written, its schedule, too, and sizes[] are not looked at. Otherwise what its schedule
 * makes of it on so many ranks (1 to FCC_MAX_RANKS), with these sizes. Returns the text's length without its NUL, and stores as much of it as `room`
 * bytes hold, a NUL at its end (room 0: nothing; then out may be NULL); or -EINVAL, with line and column, or -ENOMEM. */
int fcc_program_print(const char *text, size_t length, int nranks, const struct fcc_program_size sizes[], int nsizes, char *out,
                      size_t room);

/* Tuning. fcc_program_tune() finds the schedule with which a program takes least time on these ranks, and gives the program's text with it, to be opened
 * with fcc_program_open(). It is collective, and runs in the ranks' processes: all legal schedules that are worth it are run on memory of their own,
 * with numbers that it makes (scalars are 0.5), and timed in rounds, until the limit is reached. A schedule whose results are not those of the program as
 * written is out. The program as written is always one of them, and stays unless another one is faster beyond doubt. All ranks take one choice,
 * which is kept on disk by program, sizes, ranks, device and version: if the cache of any rank has it, all take it from there. What a cache cannot give
 * or keep is said in `cache`, and is no error.
 *
 * Errors: those of fcc_program_open() and of operators. All ranks get them. */
struct fcc_tune_options {
    const char *cache; /* this rank's directory, of mode 0700; NULL: fccd-tuned in $XDG_CACHE_HOME or $HOME/.cache */
    uint32_t limit_ms; /* no candidate is begun after that; rank 0's counts. 0: 20000 */
    uint32_t again;    /* 1: whatever caches have; rank 0's counts */
    /* Called between measurements: done of all. NULL: not called */
    void (*progress)(void *argument, int done, int all);
    void *argument;
    uint64_t reserved[4];
};
enum fcc_tune_state {
    FCC_TUNE_TIMED = 0,
    FCC_TUNE_SLOW =
        1, /* not timed: its estimate is more than twice the best one; or not timed to the end: others were much faster */
    FCC_TUNE_WRONG = 2,  /* its results differ from those of the program as written */
    FCC_TUNE_FAILED = 3, /* it could not be opened or run */
    FCC_TUNE_LATE = 4,   /* not timed: the limit was reached before */
};
struct fcc_tune_row {
    const char *schedule; /* its statements, each with a newline */
    double estimate_s;    /* negative: there is none */
    double measured_s;    /* the median of rounds, each of the slowest rank. 0: not measured */
    int32_t state;        /* enum fcc_tune_state */
    int32_t steps;        /* operators that it runs */
};
struct fcc_tuning {
    const char *text; /* the program with the schedule that won, NUL-terminated */
    const char *schedule;
    const char *cache;                 /* the file that has it, or why there is none */
    double seconds;                    /* that tuning took on this rank */
    int32_t from_cache, winner, nrows; /* from the cache: there is one row */
    int32_t reserved;
    const struct fcc_tune_row *rows; /* rows[0]: as written */
};
int fcc_program_tune(fcc_comm *comm, const char *text, size_t length, const struct fcc_program_size sizes[], int nsizes,
                     const struct fcc_tune_options *options, struct fcc_tuning **out);
void fcc_tuning_free(struct fcc_tuning *tuning); /* NULL is allowed */

#ifdef __cplusplus
}
#if __cplusplus >= 201103L
/* C++20 deprecates, and C++26 removes, arithmetic on values of two different enumerations. */
constexpr uint32_t operator|(fcc_schedule_kind kind, fcc_schedule_route route)
{
    return static_cast<uint32_t>(kind) | static_cast<uint32_t>(route);
}
constexpr uint32_t operator|(fcc_schedule_route route, fcc_schedule_kind kind)
{
    return kind | route;
}
#endif
#endif
#endif
