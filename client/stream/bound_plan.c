/* SPDX-License-Identifier: MIT
 *
 * bound_plan.c - the worker's plan of a prepared operator. It comes as a sealed file and is copied once. The copy is checked
 * twice: that kernels can run it safely (kernels/gpu/bound_check.h), and that it is a plan of the wanted operator. So a faulty
 * worker causes an error, and never corrupts this process's memory.
 */
#include "client/stream/bound.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "proto/base/error.h"
#include "proto/sealed.h"

#define PLAN_BYTES_MAX (64u << 20)

/* ---- the plug-in. The worker is trusted with data, but not with the code that this process runs, so the file that is loaded
 * does not depend on what the worker says. ---- */

#define DIRECTORY_VARIABLE "FCC_PLUGIN_DIR"

/* The directory of this library's file, with links resolved, whatever the current directory is. */
static bool library_directory(char out[PATH_MAX])
{
    char origin[PATH_MAX], path[2 * PATH_MAX];
    Dl_info info;
    bool found = false;

    if (!dladdr(DIRECTORY_VARIABLE, &info) || !info.dli_fname) /* an address in it, as its strings' are */
        return false;
    void *self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!self)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    if (!dlinfo(self, RTLD_DI_ORIGIN, origin)) {
        (void)snprintf(path, sizeof(path), "%s/%s", origin, slash ? slash + 1 : info.dli_fname);
        found = realpath(path, out) != NULL;
    }
    (void)dlclose(self);
    if (found)
        *strrchr(out, '/') = '\0';
    return found;
}

/* The plug-in for that kind of GPU: fccd/KIND.so beside this library, where both are installed, or in FCC_PLUGIN_DIR. */
static int plugin_path(const char *kind, char out[2 * PATH_MAX])
{
    const char *given = secure_getenv(DIRECTORY_VARIABLE);
    char beside[PATH_MAX];

    if (given && *given && *given != '/')
        return last_error_set(-EINVAL, "prepare: " DIRECTORY_VARIABLE ": \"%.200s\": allowed is an absolute path", given);
    if (given && *given)
        (void)snprintf(out, 2 * (size_t)PATH_MAX, "%s/%s.so", given, kind);
    else if (library_directory(beside))
        (void)snprintf(out, 2 * (size_t)PATH_MAX, "%s/fccd/%s.so", beside, kind);
    else
        return last_error_set(-ENODEV, "prepare: it cannot be found out where this library lies: " DIRECTORY_VARIABLE
                                       " must say where fccd's plug-in is");
    return 0;
}

int prepared_functions_load(const struct fcc_comm *comm, const char *theirs, const struct gpu_prepared_functions **out)
{
    const char *kind = comm->accelerator->driver->name;
    gpu_prepared_functions_function *function;
    char path[2 * PATH_MAX];
    void *library, *symbol;
    int status = plugin_path(kind, path);

    if (status)
        return status;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return last_error_set(-ENODEV,
                              "prepare: the plug-in for %s GPUs cannot be loaded into this process: %.250s (" DIRECTORY_VARIABLE
                              " says where it is; the worker has %.100s)",
                              kind, why ? why : path, theirs);
    }
    symbol = dlsym(library, GPU_PREPARED_SYMBOL);
    if (!symbol)
        return last_error_set(-EPROTO, "prepare: %s: it has no %s()", path, GPU_PREPARED_SYMBOL);
    memcpy(&function, &symbol, sizeof(function)); /* the way from an object's address to a function's that C allows */
    *out = function();
    if ((*out)->abi != GPU_PLUGIN_ABI)
        return last_error_set(-EPROTO, "prepare: %s: plug-in interface %u: this library has %u", path, (*out)->abi,
                              GPU_PLUGIN_ABI);
    return 0;
}

/* ---- the plan ---- */

int prepared_ask(const struct fcc_comm *comm, uint32_t number, enum fcc_prepared_what what, int rank,
                 struct fcc_prepared_reply *reply, int *fd)
{
    struct fcc_prepared_msg msg = {.comm = comm->handle, .number = number, .what = what, .rank = rank};

    return context_call(comm->context, CALL_OF(PREPARED, &msg, reply, .fds = fd));
}

int prepared_memory_map(const struct fcc_comm *comm, uint32_t number, enum fcc_prepared_what what, int rank,
                        struct accelerator_memory *out)
{
    struct fcc_prepared_reply reply = {.map_bytes = 0};
    int fd = -1, status = prepared_ask(comm, number, what, rank, &reply, &fd);

    if (status)
        return status;
    if (!reply.map_bytes || reply.map_bytes > SIZE_MAX) {
        (void)close(fd);
        return last_error_set(-EPROTO, "prepare: the worker sent %llu bytes of rank %d's memory",
                              (unsigned long long)reply.map_bytes, rank);
    }
    return accelerator_map(comm->accelerator, fd, reply.memory, (size_t)reply.map_bytes, out);
}

/* ---- is it the operator that was asked for? ---- */

/* Has the input this address and row stride in the plan? An absent input has address 0, and its strides do not count. */
static bool input_fits(const struct prepared_wanted *w, uint32_t tensor, uint64_t at, int64_t stride)
{
    const struct fcc_wire_tensor *t = &w->tensors[tensor];

    if (!t->buffer && !w->repeated)
        return at == 0;
    return at == (w->repeated ? 0 : t->offset) && stride == t->stride[0];
}

static bool gemv_fits(const struct gpu_prepared_plan *plan, const struct prepared_wanted *w)
{
    const struct fcc_wire_tensor *x = &w->tensors[FCC_GEMV_X], *y = &w->tensors[FCC_GEMV_Y];
    bool some = w->repeated || x->buffer;

    return plan->in.gemv.k == (some ? x->shape[1] : 0) && plan->shape.m == y->shape[0] && plan->shape.n == y->shape[1] &&
           input_fits(w, FCC_GEMV_X, plan->in.gemv.x, plan->in.gemv.x_stride) &&
           input_fits(w, FCC_GEMV_W, plan->in.gemv.w, plan->in.gemv.w_stride);
}

/* Is it a plan of the wanted gemm whose slices read only rows that the rank has? */
static bool gemm_fits(const struct gpu_prepared_plan *plan, const struct prepared_wanted *w)
{
    const struct fcc_wire_tensor *a = &w->tensors[FCC_GEMM_A], *c = &w->tensors[FCC_GEMM_C];
    bool some = w->repeated || a->buffer, fits;

    fits = plan->in.gemm.k == (some ? a->shape[1] : 0) && plan->shape.n == c->shape[1] &&
           input_fits(w, FCC_GEMM_A, plan->in.gemm.a, plan->in.gemm.a_stride) &&
           input_fits(w, FCC_GEMM_B, plan->in.gemm.b, plan->in.gemm.b_stride);
    for (uint32_t i = 0; fits && i < plan->first[GPU_PHASE_WAIT]; i++) {
        const struct slice *s = &gpu_prepared_slices(plan)[i];
        fits = !plan->in.gemm.k || (int64_t)s->row + s->rows <= a->shape[0];
    }
    return fits;
}

static bool plan_is_wanted(const struct fcc_comm *comm, const struct gpu_prepared_plan *plan, const struct prepared_wanted *w)
{
    const struct op_spec *op = op_spec(w->op);
    const struct fcc_wire_tensor *result;

    if (plan->shape.compute != op->compute || plan->shape.exchange != op->exchange || plan->rank != (uint32_t)comm->rank ||
        plan->shape.nranks != (uint32_t)comm->nranks || w->ntensors != op->ntensors)
        return false;
    if (op->result < 0)
        return true;
    if (op->compute == COMPUTE_STEP)
        return w->step && prepared_step_fits(plan, w);
    result = &w->tensors[op->result];
    return plan->shape.dtype == result->dtype && plan->out[plan->rank].stride[0] == result->stride[0] &&
           plan->out[plan->rank].data == (w->repeated ? 0 : result->offset) &&
           (op->compute == COMPUTE_GEMV ? gemv_fits(plan, w) : gemm_fits(plan, w));
}

/* ---- the whole ---- */

int prepared_plan_get(const struct fcc_comm *comm, uint32_t number, const struct prepared_wanted *wanted,
                      struct prepared_plan *out)
{
    struct fcc_prepared_reply reply = {.map_bytes = 0};
    struct error e = {.status = 0};
    void *data = NULL;
    size_t bytes = 0;
    int fd = -1, status = prepared_ask(comm, number, FCC_PREPARED_PLAN, comm->rank, &reply, &fd);

    if (status)
        return status;
    reply.plugin[sizeof(reply.plugin) - 1] = '\0';
    (void)text_clean(reply.plugin);
    status = sealed_read(fd, sizeof(struct gpu_prepared_plan), PLAN_BYTES_MAX, "the worker's plan", &data, &bytes, &e);
    (void)close(fd);
    if (!status && gpu_prepared_plan_check(data, bytes, &e))
        status = -EPROTO;
    if (status)
        status = last_error_set(status, "rank %d: prepare: %s", comm->rank, e.text);
    else if (!plan_is_wanted(comm, data, wanted))
        status = last_error_set(-EPROTO, "rank %d: prepare: the worker's plan is of another operator than %s", comm->rank,
                                operator_name((uint16_t)wanted->op));
    else
        status = prepared_functions_load(comm, reply.plugin, &out->functions);
    if (status) {
        free(data);
        return status;
    }
    out->plan = data;
    out->bytes = bytes;
    return 0;
}

int prepared_sizes_check(const struct fcc_comm *comm, const struct prepared_plan *plan, const struct gpu_prepared_sizes *sizes)
{
    struct error e = {.status = 0};

    return gpu_prepared_sizes_check(plan->plan, sizes, &e) ? last_error_set(-EPROTO, "rank %d: prepare: %s", comm->rank, e.text)
                                                           : 0;
}
