/* SPDX-License-Identifier: MIT
 *
 * fccclient.h - fused computation-collectives, served by fccd.
 *
 * A program connects to its node's fccd, joins a communicator, lets the daemon allocate the buffers that the
 * operators work on, and calls operators on them. An operator computes and communicates in one go: each finished
 * piece of a rank's result is stored where it is needed while the rest is still being computed.
 *
 * Conventions
 *   errors    Functions return 0 or a negative errno value. Outputs are set only on success. The reason in words, with the
 *             rank, the argument, the value and what is allowed, is in fcc_last_error() of the calling thread.
 *   threads   Every function may be called from any thread at any time, also on the same context or communicator,
 *             except that an object must not be used during or after the call that frees it. Operators of one rank run
 *             in the order in which they were submitted. The ranks of a communicator may be processes or threads.
 *   ownership Who creates an object frees it. fcc_disconnect() frees what is left of a context's communicators and buffers.
 *   fork      A child cannot use what its parent connected; it connects anew. Every call with an object of the parent's is refused there
 *             (-ECHILD; NULL or 0 from functions that return something else), and freeing one does nothing: the parent goes on. The
 *             memory of the parent's buffers on the cpu is the child's to read, at the addresses that the parent had asked for. No GPU
 *             driver survives a fork: a child of a process that has used a GPU, through fccd or without it, has none.
 *   NULL      In place of an object that is needed it is -EINVAL; functions that return something else return NULL or 0.
 *             What frees objects allows it.
 *   waits     Every wait ends. The daemon's time limits end operators; and where the job's worker process itself does nothing (it was
 *             stopped, or it hangs), this side gives it up when nothing has come from it for the communicator's time limit and 5 s; for twice
 *             the limit and 5 s where operators are in flight, as one may wait for its ranks that long and then run that long. (Without a
 *             communicator after 10 s; joining on a GPU may take 30 s more, and allocating 1 s more for each 128 MiB.) The
 *             call ends with -ETIMEDOUT and the worker's pid; so do all others on the context, at once, each under its own name, and
 *             its streams go on. It is over then: disconnect, and connect again. If the worker goes on later, it finds that this
 *             client has gone, and the other ranks hear so. Until the buffers are freed it may still store into them. A program that
 *             looks (fcc_request_test(), or fcc_request_wait() with a limit) instead of waiting finds the same out, if it looks once
 *             a second or more often; later if it looks less often, because time in which a process does not run is not counted.
 *   streams   The ends of things wait for operators, not for streams. Before a buffer, communicator or context is freed, the
 *             streams that operators were enqueued on, or whose kernels use the buffer, have finished (cudaStreamSynchronize).
 *
 * Error codes
 *   -EINVAL        an argument is wrong, or the ranks' arguments do not fit together
 *   -ERANGE        an index in the data is out of its table's range
 *   -ENOMEM        the memory or the user's share of it is used up
 *   -EUSERS        the user or the job has as many connections as it may have
 *   -EMFILE        this process, or the worker, has as many open files as it may have
 *   -EPERM         the caller may not
 *   -EACCES        a node has another cluster key than the one where the ranks meet
 *   -ESTALE        a node's process of this job is about to end, or has ended, and another one takes its place: join again
 *   -ENOENT        no such communicator, buffer or device, or this process does not see the GPU of its rank
 *   -ENODEV        a rank on a GPU, in a process that cannot load or use the GPU's driver
 *   -EIO           the GPU's driver refused or failed; the text has its words
 *   -ECHILD        the object is of the process from which this one was forked
 *   -EALREADY      this rank has joined already, or the pool is open already
 *   -EBUSY         the pool has allocations that are not freed
 *   -EPROTO        the two ends do not speak the same protocol
 *   -EPROTONOSUPPORT  two nodes' daemons do not have the same version
 *   -ENETUNREACH   a node that cannot be reached from here: this node's fccd speaks to none, or there is no way there
 *   -EHOSTUNREACH  the same: there is no way to that host, or its name is not known
 *   -ETIMEDOUT     a time limit passed; the text names the ranks that did not come, or the worker process that does not answer
 *   -ECONNABORTED  the communicator was aborted, or one of its ranks died; it cannot be used any more
 *   -ECONNRESET    the job's worker process is gone; connect again
 *   -ECONNREFUSED  no fccd listens at the socket, or at another node's address
 *   -ESHUTDOWN     fccd is shutting down, or the job's worker process was told to end
 *   -EAGAIN        not finished yet (fcc_request_wait)
 *   -EOPNOTSUPP    not for ranks like these: on one node, on several nodes, or on GPUs, as the text says
 *   -EXDEV         a rank's memory cannot be mapped here: it is on another node, or a GPU cannot address the other
 *
 * Functions list what else they return than this: any that is given an object -EINVAL for NULL and -ECHILD; any that asks the worker what has
 * ended the connection (-ECONNRESET, -ESHUTDOWN, -ETIMEDOUT, -EPROTO), and -ENOMEM. Where other nodes take part, what ended the
 * connection to one of them ends the communicator, and may be any of these.
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

#define FCC_MAX_RANKS 64         /* ranks of one communicator */
#define FCC_MAX_DIMS 4           /* dimensions of one tensor */
#define FCC_TIME_LIMIT_DEFAULT 0 /* the daemon's configured time limit */

typedef struct fcc_context fcc_context;   /* a connection to fccd */
typedef struct fcc_comm fcc_comm;         /* one rank's membership of a communicator */
typedef struct fcc_buffer fcc_buffer;     /* memory that the daemon allocated and this process has mapped */
typedef struct fcc_request fcc_request;   /* an operator that was submitted */
typedef struct fcc_prepared fcc_prepared; /* an operator that was prepared once, to run many times */

enum fcc_dtype { FCC_F32 = 1, FCC_F16 = 2, FCC_BF16 = 3, FCC_I32 = 4, FCC_I64 = 5 };

/* How an operator runs. The two last are for measurements only: their results are undefined. */
enum fcc_schedule_kind {
    FCC_SCHEDULE_AUTO = 0,         /* whichever of the next two measured faster for this shape */
    FCC_SCHEDULE_FUSED = 1,        /* every slice leaves when it is finished */
    FCC_SCHEDULE_SEQUENTIAL = 2,   /* compute everything, then communicate everything */
    FCC_SCHEDULE_COMPUTE_ONLY = 3, /* the first half of sequential */
    FCC_SCHEDULE_COMM_ONLY = 4,    /* the second half of sequential */
};

/* May be added to a schedule (FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT): how gemv_all_reduce's sums are made over several nodes, and
 * so the order of additions (below). Without it the topology and the sizes decide, never a time that was measured. Other
 * operators have one way. */
enum fcc_schedule_route {
    FCC_SCHEDULE_FLAT = 0x40,         /* as on one node: on cpu devices the same bits, wherever the ranks are */
    FCC_SCHEDULE_HIERARCHICAL = 0x80, /* in each node first, wherever a node has several ranks */
};
#define FCC_SCHEDULE_ROUTES 0xc0u

enum fcc_buffer_kind {
    FCC_BUFFER_LOCAL = 0,     /* for inputs: used by this rank's operators only */
    FCC_BUFFER_SYMMETRIC = 1, /* for results: every rank has one, and its peers store into it */
    FCC_BUFFER_RESULT = 2,    /* for results, too, but a rank makes it when it needs it: the others have no part of it */
};

/* What a rank computes on. Its buffers lie in that device's memory. */
enum fcc_device_kind {
    FCC_DEVICE_CPU = 0,
    FCC_DEVICE_GPU = 1, /* asked for: whichever GPUs the node has */
    FCC_DEVICE_HIP = 2,
    FCC_DEVICE_CUDA = 3,
};

enum fcc_pooling { FCC_POOLING_SUM = 0, FCC_POOLING_MEAN = 1 };

/* A communicator's name and secret. Whoever has it, and is of the same user and job, may join. */
struct fcc_unique_id {
    unsigned char bytes[128];
};

/* ---- connection ---------------------------------------------------------------------------------------------- */

/* All zero is the default for every field. */
struct fcc_connect_options {
    const char *socket_path; /* NULL: $FCCD_SOCKET, or /run/fccd/fccd.sock */
    const char *job;  /* NULL: $FCCD_JOB, or the launcher's job id, or "default"; 1 to 63 printable characters, no space */
    uint32_t no_ring; /* not 0: submit over the socket instead of the shared-memory ring */
    /* not 0, for tests: FCC_OP_enqueue uses functions on the CPU, as with GPUs whose streams cannot wait for words in memory */
    uint32_t no_stream_memory_operations;
    uint32_t reserved[6]; /* must be 0 */
};

/* Connect to fccd and, through it, to the worker of this user's job, which is started if there is none. `options` may
 * be NULL. *out belongs to the caller until fcc_disconnect(). Waits at most 10 s. Where the worker dies before it has read the
 * connection, the call tries again, three times in all.
 * Errors: -ECONNREFUSED, -ECONNRESET, -EPERM (this user may not use fccd, or JOBS_PER_USER), -EPROTO, -ESHUTDOWN, -EINVAL, -ENOMEM, -ETIMEDOUT,
 * -EMFILE (this process or the worker), -EUSERS (CONNECTIONS_PER_JOB or CONNECTIONS_PER_USER, fccd.conf(5)). */
int fcc_connect(const struct fcc_connect_options *options, fcc_context **out);

/* Close the connection and free its communicators, buffers and requests. Communicators that were not destroyed
 * before count as aborted for their other ranks. NULL is allowed. */
void fcc_disconnect(fcc_context *context);

/* The number of the node's devices that this context may use; -EINVAL, -ECHILD. */
int fcc_device_count(const fcc_context *context);

/* Why the last fcc_ call that failed in this thread did so. Never NULL; valid until the thread's next failing call. */
const char *fcc_last_error(void);

/* "MAJOR.MINOR.PATCH" of the library. */
const char *fcc_version(void);

/* ---- communicators ------------------------------------------------------------------------------------------- */

/* Make a new communicator's id. One rank calls this and gives the id to the others by any means it has.
 * Errors: -EIO (no random numbers), -ECONNRESET. */
int fcc_get_unique_id(fcc_context *context, struct fcc_unique_id *out);

struct fcc_comm_options {
    /* the device of this rank, among those of its kind as fccctl devices numbers them: 0 or more, or -1 for (rank modulo
     * number of devices of the kind) */
    int32_t device;
    /* how long an operator may wait for its ranks or run; 0: the daemon's TIME_LIMIT_MS. The shortest of the ranks' is in force on all */
    uint32_t time_limit_ms;
    uint32_t device_kind; /* enum fcc_device_kind; the same on all ranks */
    uint32_t reserved[5]; /* must be 0 */
};

/* Join the communicator `id` as `rank` of `nranks`, and wait until all have joined. `options` may be NULL (device -1).
 * *out belongs to the caller until fcc_comm_destroy().
 * A rank on a GPU: this process must see that GPU (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES), under whatever number; its
 * primary context is retained until fcc_disconnect().
 * If one rank may not join, all get its error, which names it, those that come later within the time limit, too. A rank that has got it may come again with the
 * same id, and so may all. That holds also where the rank's node and the one where they meet do not speak to each other, as one has another
 * cluster key or version, if the id is one of fcc_get_unique_id(). With fcc_comm_init_env() the others then wait for their time limit, and its error
 * says which of NODES are not reached from there. (They do not hear of a rank that has no context, or whose node may not connect to theirs.)
 * Errors: -EINVAL (rank, nranks, device, id), -EALREADY (the rank has joined, or all have), -ENOENT (device), -ENODEV, -EIO, -ENOMEM, -EXDEV,
 * -EMFILE (this process, or a node's worker), -ETIMEDOUT, -ECONNABORTED, -ECONNRESET, -ESHUTDOWN; with ranks on several nodes -EPERM (a node's
 * fccd does not serve this user, or may not connect to where the ranks meet), -EACCES, -EUSERS, -ENETUNREACH, -EHOSTUNREACH, -ECONNREFUSED,
 * -ESTALE, -EPROTO, -EPROTONOSUPPORT. */
int fcc_comm_init(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
                  const struct fcc_comm_options *options, fcc_comm **out);

/* What a launcher says to a process that it has started. */
struct fcc_env {
    int32_t rank, size;             /* among all of its processes */
    int32_t local_rank, local_size; /* among those on this node; -1: nobody says */
    char launcher[16];              /* "torchrun", "openmpi", "mpich", "slurm", "fcc" (the variables FCC_...), "none" */
    char job[64];                   /* the job's id, as fcc_connect() takes it from the environment */
    char world[64];   /* what tells these processes from others of the job: Slurm's step, for example. "" is allowed */
    char meeting[64]; /* the node where they meet, "host" or "host:port"; "": this node */
};

/* Find out under torchrun, Open MPI (mpirun), MPICH (mpiexec) and Slurm (srun), in this order: of two that are there (torchrun that
 * srun started) the first one counts. A process without any launcher is rank 0 of 1. Variables that are missing, wrong or
 * contradict each other are errors; the text names the variable, its value and what is allowed.
 *
 * These override what launchers say:
 *   FCC_RANK, FCC_SIZE  both, or none. With them alone, FCC_MEETING must be set, and FCCD_JOB tells worlds apart that run at a time
 *   FCC_LOCAL_RANK
 *   FCC_MEETING         the address of a node with a rank, best as its NODE_ADDRESS in fccd.conf has it, with or without the port, the
 *                       same for all ranks; set to nothing: all ranks are on this node
 * Ranks that are on one node meet there; others at MASTER_ADDR (torchrun) or the first host of the step (Slurm). Open MPI and MPICH
 * say no such place: there FCC_MEETING must be set if the ranks are on several nodes, and with MPICH FCCD_JOB too.
 * Errors: -EINVAL. */
int fcc_env_find(struct fcc_env *out);

/* Join a communicator of all processes that the launcher has started, as fcc_env_find() says, without exchanging an id: the next one
 * of this process. So all ranks make their communicators by this function in the same order, whatever the threads and contexts;
 * calls that fail do not count. Their contexts are of the same job. Otherwise as fcc_comm_init().
 * Errors: those of fcc_env_find() and fcc_comm_init(). */
int fcc_comm_init_env(fcc_context *context, const struct fcc_comm_options *options, fcc_comm **out);

/* For bindings and libraries above this one, which check arguments by themselves: this rank cannot join, with a negative errno value and the
 * reason: the argument, its value and what is allowed. All ranks of the communicator get that error, as if fcc_comm_init() had refused it
 * here. id NULL: of the next communicator of fcc_comm_init_env(); nranks and rank are the launcher's then.
 * 0: they hear of it. Errors: -EINVAL (status, reason), those of fcc_env_find(), -ENETUNREACH, -ECONNRESET, -ESHUTDOWN: nobody does. */
int fcc_comm_init_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                         const char *reason);

/* Leave the communicator and free this rank's buffers in it. Operators still in flight are waited for, at most for the
 * communicator's time limit. For the other ranks it has ended then (-ECONNABORTED at their next operator). NULL is allowed. */
void fcc_comm_destroy(fcc_comm *comm);

/* End the communicator for all ranks: operators that run or wait end with -ECONNABORTED and this rank and `reason`
 * (at most 200 characters; may be NULL) in their error text. Errors: -EINVAL (reason), -ECONNRESET. */
int fcc_comm_abort(fcc_comm *comm, const char *reason);

/* These return -EINVAL and -ECHILD too (the last one as (enum fcc_device_kind)-EINVAL). */
int fcc_comm_rank(const fcc_comm *comm);
int fcc_comm_size(const fcc_comm *comm);
int fcc_comm_device(const fcc_comm *comm);                       /* its number, for fcc_comm_options.device */
enum fcc_device_kind fcc_comm_device_kind(const fcc_comm *comm); /* FCC_DEVICE_CPU, FCC_DEVICE_HIP or FCC_DEVICE_CUDA */

/* ---- buffers ------------------------------------------------------------------------------------------------- */

/* Let the daemon allocate `bytes` (at least 1) of zeroed memory on this rank's device and map it here.
 * FCC_BUFFER_SYMMETRIC is collective: all ranks call it in the same order, among each other and among their operators,
 * with the same size. FCC_BUFFER_LOCAL and FCC_BUFFER_RESULT are this rank's own affair, and so is the refusal of another kind: ranks that
 * allocate symmetric memory meanwhile wait for this one, which may call again. The memory is page-aligned. *out
 * belongs to the caller until fcc_buffer_free() or fcc_comm_destroy().
 * Errors: -EINVAL, -ENOMEM, -EMFILE (a process is out of file descriptors: the communicator goes on), -EIO, -ETIMEDOUT,
 * -ECONNABORTED (of either kind: the communicator has ended), -ECONNRESET. */
int fcc_buffer_alloc(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes, fcc_buffer **out);

/* Unmap and release the buffer. Operators in flight that use it finish first in the daemon; on a GPU the caller sees to it that
 * the streams of this process have finished with it. Not collective. NULL is allowed. */
void fcc_buffer_free(fcc_buffer *buffer);

/* Where it is mapped in this process: an address for the CPU, or for the GPU of its rank (in the current process's primary
 * context of that GPU: good for its kernels, its BLAS, and torch.from_blob). */
void *fcc_buffer_data(const fcc_buffer *buffer);
size_t fcc_buffer_size(const fcc_buffer *buffer); /* bytes, as asked for */

/* The context's buffer in whose bytes the address lies, of any of its communicators; NULL if there is none. It is the caller's only
 * to use, and only while its owner keeps it. */
fcc_buffer *fcc_buffer_find(const fcc_context *context, const void *address);

/* Copy `bytes` between host memory and the buffer, beginning at its byte `offset`, on any kind of device; returns when it is
 * done. On a GPU this is not ordered with any stream. Errors: -EINVAL (offset and bytes), -EIO (the GPU's reason). */
int fcc_buffer_write(fcc_buffer *buffer, uint64_t offset, const void *from, size_t bytes);
int fcc_buffer_read(const fcc_buffer *buffer, uint64_t offset, void *to, size_t bytes);

/* ---- memory pools: buffers for allocators that know no handles --------------------------------------------------- */

/* Some allocators take functions that are told a size and the number of a device, and nothing of their caller's:
 * torch.cuda.MemPool with a CUDAPluggableAllocator, for one. fcc_pool_open() says whose memory they get from now on: local buffers of
 * `comm`. `device` is the allocator's number, 0 to FCC_POOL_DEVICES - 1, and means nothing here. Not twice for one device.
 * `comm` must not be destroyed before fcc_pool_close() of that device has returned 0, which it does when all that was allocated
 * has been freed. Errors: -EINVAL, -EALREADY (another communicator's is open), -EBUSY (allocations are left), -ENOENT (not open). */
#define FCC_POOL_DEVICES 64
int fcc_pool_open(fcc_comm *comm, int device);
int fcc_pool_close(int device);

/* With the types that CUDAPluggableAllocator wants. alloc returns NULL where the device's pool is not open or has no memory
 * (fcc_last_error()). free waits until the GPU has finished what it does, as cudaFree does. `stream` is not looked at. */
void *fcc_pool_alloc(ptrdiff_t bytes, int device, void *stream);
void fcc_pool_free(void *memory, ptrdiff_t bytes, int device, void *stream);

/* A number that grows whenever fcc_pool_free() has taken a buffer away, which it does before the memory goes: who remembers what
 * fcc_buffer_find() found looks at it first. It may be read at any time. */
const volatile uint64_t *fcc_pool_frees(void);

/* ---- the program's own kernels ------------------------------------------------------------------------------- */
/*
 * A program's kernels (or, on the cpu, its threads) may store into other ranks' parts of a symmetric buffer by themselves, and
 * wait for what others store into theirs: fused operators of its own. They keep to the rules that fccd's kernels keep to:
 *
 *   signals   A signal is a word of 8 bytes, aligned to 8, in a symmetric buffer (which is zeroed when it is made). Its values
 *             only grow: for the n-th time n is stored, and it is never reset, so what is left of an earlier time cannot be
 *             mistaken. One rank stores each word; to count several, give each a word of its own.
 *   sending   The data's stores, then the signal's: a store with release semantics at system scope, by a thread that all
 *             others' stores happen before (a barrier of their workgroup, and on a GPU by that thread: __threadfence_system()
 *             or an st.release.sys).
 *   waiting   Load the signal with acquire semantics at system scope until it is at least the value that is waited for, then
 *             load the data. In the same loop look at the communicator's status word. If it is not 0, look at the signal once
 *             more (with acquire, after the status, with acquire too), and leave if it still has not come: it never will.
 *   reuse     Before data is overwritten that a peer may still be reading, the peer has said, by a signal of its own, that it
 *             has done so. And an operator of fccd that uses a buffer and a kernel of the program that does are ordered by the
 *             program.
 *
 * Kernels that wait occupy their place on the GPU. What they wait for must not need that place: a kernel with more workgroups
 * than fit at a time waits in its last ones only, or for other ranks' earlier kernels.
 */

/* Map rank's part of a symmetric buffer into this process: *out is an address as fcc_buffer_data() gives it for the own part,
 * for the CPU or for the GPU of this rank. It is good until `buffer`, this rank's part, is freed: also if the other rank frees
 * its own or dies before. Its memory is kept so long, and what is stored there then is seen by nobody. (Counted against the
 * user's memory as long as it is kept.) Asked for again it is the same address. rank may be the own one.
 * Errors: -EINVAL (a buffer that is not symmetric, for the own rank, too; rank), -EXDEV (the rank is on another node), -ENOENT (that rank
 * has freed its part or has left), -ENOMEM, -EMFILE, -EIO, -ECONNABORTED, -ECONNRESET. */
int fcc_buffer_peer(fcc_buffer *buffer, int rank, void **out);

/* Where kernels of this rank's device (for a rank on a GPU) or this process's threads read the communicator's status: 0, or a
 * negative errno value when it was aborted, when another rank has died or has left, or when the worker is gone: nobody should
 * wait for others any more. When a rank has left (fcc_comm_destroy), it is set after all that the rank had stored and put
 * before, unless the communicator is aborted meanwhile. The next operator says why in words. The word is good until the
 * communicator is destroyed; it is for reading only. A thread of the library watches for the worker's end from the first call
 * on, and asks it now and then whether it is there: one that does not answer for the time limit and 5 s (it is stopped, or hangs) is
 * given up, and the word becomes -ETIMEDOUT.
 * Errors: -EINVAL, -ENOMEM (more than 1024 communicators of one context at a time, or no thread), -EMFILE. */
int fcc_comm_status(fcc_comm *comm, const int32_t **out);

/* What a kernel of this rank sends to a rank on another node, when it triggers it: rows, and behind them a signal. Either may
 * be missing. All zero: neither. */
struct fcc_put {
    int32_t rank;         /* to whom */
    uint32_t rows;        /* 0: none; from, to and what is said of rows do not count */
    uint64_t row_bytes;   /* at least 1 */
    uint64_t stride;      /* bytes from row to row, at both ends, at least row_bytes; of one row it says nothing */
    fcc_buffer *from;     /* a buffer of this rank, of either kind, and the first row's place in it */
    uint64_t from_offset; /* bytes */
    fcc_buffer
        *to; /* this rank's part of the symmetric buffer that the rows go into, and the first row's place in the other's part */
    uint64_t to_offset;
    fcc_buffer *signals;    /* this rank's part of the symmetric buffer that the signal lies in; NULL: none */
    uint64_t signal_offset; /* a multiple of 8 */
    uint32_t reserved[4];   /* must be 0 */
};

/* Make a put known, at most 65536 of a rank at a time. *number is what triggers name it by, until one of its buffers is freed
 * (here, or by the other rank its part); then its triggers do nothing, and the number may be given out anew. A rank frees its
 * part of a buffer when all that is put into it has come, as the signals say. (A barrier does not: it may overtake triggers.)
 * What still comes then is dropped; over RDMA it may end the connection between the nodes, and their communicators. Ranks on GPUs have no triggers yet.
 * Errors: -EINVAL (rank, rows, offsets), -ENOENT (a buffer), -EOPNOTSUPP (all ranks are on this node, or on GPUs), -ENOMEM,
 * -ECONNABORTED, -ECONNRESET. */
int fcc_put_register(fcc_comm *comm, const struct fcc_put *put, uint32_t *number);

/* Trigger a put from a thread on the CPU: its rows are sent, in the order of triggers, then the signal is set to `value` there.
 * Waits while there are 4096 that the proxy has not taken. What the thread has stored before is sent. The rows must stay as
 * they are until the other rank has said that it has them, by a signal of its own.
 * Errors: -EINVAL (number: 0), -ECONNABORTED and what else the status word says, those of fcc_comm_triggers(). A number that is
 * not known ends the communicator. */
int fcc_put_trigger(fcc_comm *comm, uint32_t number, uint64_t value);

/* The same from a kernel: where this rank's triggers go, in memory that its device sees.
 *
 *     p = (*head)++                                   atomic, system scope, acquire and release
 *     while p - *tail >= capacity: leave if status    tail: acquire. Who leaves does so for good: the communicator is over
 *     slots[p % capacity][1] = value
 *     slots[p % capacity][0] = number                 release, system scope, behind all that is to be sent, as a signal
 *
 * The proxy finds a trigger at once while there are many, and within about 2 ms after a quiet time: nobody rings for it. */
struct fcc_triggers {
    uint64_t *head;
    const uint64_t *tail;
    uint64_t (*slots)[2];
    uint64_t capacity; /* a power of two */
};
/* Good until the communicator is destroyed, which waits until all triggers were taken.
 * Errors: -EOPNOTSUPP (all ranks are on this node, or on GPUs), -ENOMEM, -EMFILE, -ECONNABORTED, -ECONNRESET. */
int fcc_comm_triggers(fcc_comm *comm, struct fcc_triggers *out);

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
 * result is complete. FCC_OP_start(comm, args, &request) returns at once; `args` may go, the buffers must stay as they are
 * until the request is finished. An argument error of one rank, or ranks whose arguments do not fit together, end that operator
 * with the same error on all ranks, and the communicator goes on. That holds for what the library refuses by itself, too (NULL, too many
 * tables, a stream that is captured): the operator takes its place in the rank's order, and the other ranks get the error. This rank gets it when
 * they do; from FCC_OP_start and FCC_OP_enqueue at once, and there is no request then. Only calls without a communicator are nobody
 * else's concern. -ETIMEDOUT and -ECONNABORTED end the communicator, as does whatever keeps an operator from being submitted.
 *
 * A tensor *for results* lies in a symmetric buffer or a result buffer, of the communicator, that this rank has made.
 *
 * No operator works in place: an input with a byte that is the result's, this rank's or another's, is -EINVAL. Inputs may overlap each other, and
 * may lie in the same buffer as the result: beside it, or between its rows, as the other columns of one matrix do. (Between rows with another
 * distance from each other than the input's own it may be refused though it touches none.)
 *
 * FCC_OP_enqueue(comm, args, stream, &request) is for ranks on a GPU: the operator takes its place on the caller's stream
 * (hipStream_t, cudaStream_t, CUstream; NULL is the default stream, CUDA's legacy one). It begins after what is on the
 * stream, and what comes onto the stream later sees its result; the CPU waits for neither. (Nothing is stored at a rank before its
 * stream has come; but kernels may wait for that on the other ranks' GPUs: libfccclient(3).) An operator that fails lets the
 * stream go on, too. `request` may be NULL: then an error is told by fcc_comm_error() and fcc_comm_error_wait(), and gemm's
 * recv_rows must be NULL. Up to 64 operators of a context may be in flight; the next call waits for one of them (so threads that
 * enqueue far ahead on several communicators should have a context each). Operators of one rank run in the order of the calls, on
 * whichever streams. Not while the stream is being captured into a graph (-EINVAL).
 * On CUDA GPUs of one node, one for each rank, a noop, gemv or gemm that all ranks enqueue again and again without a request is launched by their
 * own processes after a while, as prepared ones are, which takes less; nothing else changes (libfccclient(3), REPEATED OPERATORS).
 * Common errors: -EINVAL, -ERANGE, -ENOMEM, -EIO, -ETIMEDOUT, -ECONNABORTED, -ECONNRESET, -ESHUTDOWN.
 */

/* embedding_all_to_all: EmbeddingBag over tables sharded by table, then All-to-All from tables to samples.
 * (Punniyamurthy et al., SC24, section "embedding + All-to-All"; the layout of the inputs is that of FBGEMM's table-batched
 * embeddings and torch.nn.EmbeddingBag.)
 *
 * Rank r holds T_r tables (0 or more) of equal width D and pools them for the global batch of B samples. Sample s belongs
 * to the rank in whose part of the batch it lies: rank p has the next batch_split[p] samples in rank order.
 * Rank p ends with out[s][t][d] for its own samples s, and for t over the tables of rank 0, then those of rank 1, ...
 *
 * Same on all ranks: B, D, dtype, batch_split, schedule. May differ: T_r, rows, indices, index dtype, pooling, weights, out's
 * place. */
struct fcc_embedding_all_to_all_args {
    struct fcc_tensor tables;  /* [sum of table_rows][D], f32, f16 or bf16: the tables one below the other. D at least 1 */
    const int64_t *table_rows; /* [num_tables] rows of each table, 0 or more */
    int32_t num_tables;        /* T_r: 0 to FCC_MAX_TABLES */
    int32_t pooling;           /* enum fcc_pooling; the mean divides by the bag's number of indices */
    struct fcc_tensor indices; /* [nnz], i32 or i64: rows of the table, bag by bag, table 0's bags first */
    struct fcc_tensor offsets; /* [T_r * B + 1], dtype of indices: bag (t, s) is indices[offsets[t*B+s] ... [t*B+s+1]-1];
                                  not descending, last at most nnz. An empty bag pools to 0 */
    struct fcc_tensor sample_weights; /* [nnz], f32: each index's factor. Absent: 1. Not with mean */
    int64_t batch;                    /* B: 0 or more */
    const int64_t *batch_split;       /* [nranks], sum B. NULL: even; the first (B modulo nranks) ranks have one more */
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

/* gemv_all_reduce: y = sum over ranks r of x_r . w_r^T: a matrix-vector product (or a thin matrix product) split along K, then
 * an AllReduce. Partial sums are f32, added in an order that is fixed, and rounded once: every rank gets the same bits, every
 * run. (SC24, "GEMV + AllReduce": direct two-phase reduce-scatter and all-gather, each rank reducing its share of the tiles.)
 *
 * The order of additions. On one node, and flat: rank 0's partial sum, plus rank 1's, plus rank 2's, ... Over several
 * nodes, hierarchical: first the sum of each node's ranks, in rank order; then these sums, in the order of the nodes' first
 * ranks. So a communicator's placement on nodes may change the last bits of y, and FCC_SCHEDULE_FLAT is for who cannot have
 * that. Without a route it is hierarchical if there are several nodes and M * N * 4 bytes times (the ranks of the largest node - 1)
 * are 32768 or more.
 *
 * Same on all ranks: M, N, dtype, schedule. May differ: K_r (0 is allowed). */
struct fcc_gemv_all_reduce_args {
    struct fcc_tensor x; /* [M][K_r], f32, f16 or bf16; M from 1 to 64; last stride 1 */
    struct fcc_tensor w; /* [N][K_r], dtype of x; last stride 1 */
    struct fcc_tensor y; /* [M][N], dtype of x, for results; last stride 1, rows do not overlap */
    uint32_t schedule;   /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
#define FCC_GEMV_MAX_M 64
int fcc_gemv_all_reduce(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args);
int fcc_gemv_all_reduce_start(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_request **out);
int fcc_gemv_all_reduce_enqueue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, void *stream, fcc_request **out);

/* gemm_all_to_all: C_r = A_r . B_r, whose rows are sent to the ranks: the first send_rows[0] rows to rank 0, the next
 * send_rows[1] to rank 1, ... Rank p ends with c = the rows that rank 0 sent it, then those of rank 1, ...
 * (SC24, "GEMM + All-to-All"; the counts are those of MPI_Alltoallv.)
 *
 * Without b (b.buffer is NULL) C_r is A_r, K_r = N: an AllToAll of rows, which come bit for bit as they are.
 *
 * Same on all ranks: N, dtype, schedule. May differ: M_r, K_r, send_rows. */
struct fcc_gemm_all_to_all_args {
    struct fcc_tensor a;      /* [M_r][K_r], f32, f16 or bf16; last stride 1 */
    struct fcc_tensor b;      /* [K_r][N], dtype of a; last stride 1; or absent */
    const int64_t *send_rows; /* [nranks], sum M_r, 0 or more each. NULL: equal (M_r must be a multiple of nranks) */
    struct fcc_tensor c;      /* [at least the rows received][N], dtype of a, for results; last stride 1, rows do not overlap.
                                 Rows beyond those received are left as they are */
    int64_t *recv_rows;       /* [nranks] or NULL: set, when the operator has finished, to the rows received from each rank.
                                 Must stay valid until then */
    uint32_t schedule;        /* enum fcc_schedule_kind */
    uint32_t reserved[7];
};
int fcc_gemm_all_to_all(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args);
int fcc_gemm_all_to_all_start(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_request **out);
int fcc_gemm_all_to_all_enqueue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, void *stream, fcc_request **out);

/* noop: all ranks meet, and nothing else: a barrier, and the measure of the way through the daemon. */
int fcc_noop(fcc_comm *comm);
int fcc_noop_start(fcc_comm *comm, fcc_request **out);
int fcc_noop_enqueue(fcc_comm *comm, void *stream, fcc_request **out);

/* For bindings and libraries above this one, which check arguments by themselves: this rank's next operator (by its name, "gemv_all_reduce" for
 * example; "gemv_all_reduce_prepare"; "fcc_buffer_alloc" for a symmetric one) is refused, with a negative errno value and the reason: the argument, its value and
 * what is allowed. It takes its place in the rank's order, so that the other ranks get the same error in theirs, and *out ends with it.
 * Errors: -EINVAL (operator, status, reason), -ENOMEM, -ECONNRESET. */
int fcc_refuse_start(fcc_comm *comm, const char *op, int status, const char *reason, fcc_request **out);

/* Operators that stand directly behind each other on streams. Between two operators the stream sees the end of the one and says that
 * it has come to the next, which takes longer than a small operator. In a group it does so once: what this thread enqueues from
 * fcc_group_begin() to fcc_group_end() begins, as always, after what was put onto its stream before it, and in the order of the calls;
 * but the streams wait for these operators only at the group's end. So an operator may use what one before it in the group has
 * stored here; whatever else is put onto the streams within the group must neither use their results nor change what they read, nor
 * end the stream. Ranks may group as they like. Groups may be in each other: the outermost one counts. Operators that are not enqueued are not concerned.
 * Where streams and fccd do not meet in the memory of GPUs (libfccclient(3)), and in a group of more than 64 operators from the
 * 65th on, streams wait earlier. A group ends in the thread that began it, and before its contexts do.
 * fcc_group_end: -EINVAL without a group; -EIO, for streams that do not wait: all operators run nevertheless. */
void fcc_group_begin(void);
int fcc_group_end(void);

/* Prepared operators, for ranks on CUDA GPUs: what MPI calls a persistent collective. The daemon checks the arguments of all ranks, makes the
 * plans and the memory, and watches; but each rank's kernel is launched by its own process, onto its own stream. So nothing is handed
 * over between two processes: a run costs a launch, with MPS or without it. The arguments are fixed: each run reads the inputs
 * as they are when it comes on the stream, and stores into the same result.
 *
 * FCC_OP_prepare is collective: all ranks call it in the same order, among each other and among their operators. It returns when all are
 * ready. `args` may go then; the buffers must not be freed before *out is, which belongs to the caller until fcc_prepared_free() or
 * fcc_comm_destroy(). The schedule is fused (auto means that, too; others are -EINVAL). gemm's recv_rows is set at once.
 *
 * Runs. Every rank enqueues each prepared operator as often as the others. Run n of all ranks belongs together, and begins after what is
 * on the rank's stream; what comes onto the stream later sees its result. On a stream runs and other operators have the stream's order,
 * and must have the same on all ranks; runs that are enqueued on different streams of a rank the caller orders by events. A stream
 * waits for the other ranks in the run's kernel, at most for the communicator's time limit; what a failed run leaves in its result is
 * undefined. fccctl comms shows who has not come. fccctl trace does not show runs.
 *
 * A rank whose process dies while its kernel runs under MPS takes all of that MPS server's contexts with it (libfccclient(3)); then the job
 * gets -ECONNRESET. The communicator's end (a rank that died, a time limit, an abort) lets all kernels leave; streams go on.
 *
 * Errors: as the operator's. -EOPNOTSUPP: a communicator over nodes, or not on CUDA GPUs, or with two ranks on a GPU, or whose GPUs' memory
 * is not shared by file descriptors. -ENODEV, -EIO: a rank's process cannot load fccd's plug-in, or its driver fails; then no rank has the operator.
 * -ENOMEM: a context has FCC_PREPARED_MAX already. -EMFILE. */
#define FCC_PREPARED_MAX 64
int fcc_gemv_all_reduce_prepare(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_prepared **out);
int fcc_gemm_all_to_all_prepare(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_prepared **out);
/* One run, on the stream (cudaStream_t, CUstream; NULL is the legacy default stream). Does not wait. Not while the stream is being captured
 * into a graph (-EINVAL). A call that fails has put no run onto the stream, and may be repeated. If it is not, within a second in which another
 * rank's run waits for it, the communicator is over for all ranks with its error.
 * Errors: -EIO, and once the communicator is over what fcc_comm_status() has: -ECONNABORTED, -ETIMEDOUT, ... */
int fcc_prepared_enqueue(fcc_prepared *prepared, void *stream);
/* Not collective. The streams of this process have finished its runs. NULL is allowed. */
void fcc_prepared_free(fcc_prepared *prepared);

/* How the operators went that were enqueued without a request: 0, or the first error since the last call (which forgets it).
 * Looks at those that have finished; does not wait. A stream may have gone past an operator a moment before this knows how it
 * went. */
int fcc_comm_error(fcc_comm *comm);
/* The same for a program that has waited for its streams: also of all operators that streams had gone past when it was called, for
 * which it waits, at most timeout_ms (then -EAGAIN; nothing is forgotten) or, with -1, as long as an operator may take (then
 * -ETIMEDOUT). It asks the GPU if it has to, and so takes longer; -EIO if the GPU does not answer. */
int fcc_comm_error_wait(fcc_comm *comm, int timeout_ms);

/* ---- requests ------------------------------------------------------------------------------------------------ */

/* *done = 1 if the request is finished (well or not), else 0. Does not wait. */
int fcc_request_test(fcc_request *request, int *done);

/* Wait at most timeout_ms (-1: until a time limit ends it, the daemon's or this side's) for the request. Returns the operator's result, or
 * -EAGAIN if it is still running. May be called again, with the same answer. */
int fcc_request_wait(fcc_request *request, int timeout_ms);

/* Free the request. One that is still running goes on without its handle. NULL is allowed. */
void fcc_request_free(fcc_request *request);

#ifdef __cplusplus
}
#if __cplusplus >= 201103L
/* C++20 warns of values of two enumerations in one expression, and C++26 has none. */
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
