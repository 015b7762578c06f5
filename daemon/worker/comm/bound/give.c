/* SPDX-License-Identifier: MIT
 *
 * give.c - what a rank's process asks for of an operator that was bound for it: its plan, memory that its kernels use, its kernel.
 */
#include <errno.h>
#include <unistd.h>

#include "daemon/common/plugin.h"
#include "daemon/worker/comm/bound/inside.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/code/code.h"
#include "kernels/plan/compute/step.h"
#include "kernels/plan/spec.h"

static int result_give(const struct prepared *p, int rank, struct fcc_prepared_reply *out, int *fd, struct error *e)
{
    int t = op_spec(p->op)->result;
    const struct buffer *b = t < 0 ? NULL : p->ranks[rank].buffers[t];

    if (!b || b->fd < 0)
        return error_set(e, -ENOENT, "prepared %u: rank %d: it has no result that others could store into", p->number, rank);
    out->memory = b->memory.kind;
    out->map_bytes = b->memory.bytes;
    *fd = b->fd;
    return 0;
}

static int input_give(const struct prepared *p, int rank, struct fcc_prepared_reply *out, int *fd, struct error *e)
{
    const struct prepared_rank *of = &p->ranks[rank];

    if (of->input_fd < 0)
        return error_set(e, -ENOENT, "prepared %u: rank %d: it has no input that others could read", p->number, rank);
    out->memory = of->buffers[STEP_IN]->memory.kind;
    out->map_bytes = of->buffers[STEP_IN]->memory.bytes;
    *fd = of->input_fd;
    return 0;
}

/* -EAGAIN: it is being made, and the client asks again. */
static int code_give(struct prepared *p, int rank, struct fcc_prepared_reply *out, int *fd, struct error *e)
{
    struct prepared_rank *of = &p->ranks[rank];
    const void *image;
    size_t bytes;

    if (!of->code)
        return error_set(e, -ENOENT, "prepared %u: it is no step of a program", p->number);
    if (gpu_code_image(of->code, &image, &bytes, e) ||
        (of->code_fd < 0 && sealed_make("fccd-kernel", image, bytes, &of->code_fd, e)))
        return e->status;
    out->memory = FCC_MEMORY_HOST;
    out->map_bytes = bytes;
    *fd = of->code_fd;
    return 0;
}

int prepared_give(const struct member *m, const struct fcc_prepared_msg *msg, struct fcc_prepared_reply *out, int *fd,
                  struct error *e)
{
    const struct comm *c = m->comm;
    struct prepared *p = prepared_find(c, msg->number);

    if (msg->number == 0 && msg->what == FCC_PREPARED_CODE && gpu_codes_are_made(c->worker->gpus))
        return error_set(e, -EAGAIN, "kernels of programs' steps are being made");
    if (!p || !p->ranks[m->rank].held)
        return error_set(e, -ENOENT, "prepared: %u: no such operator of this rank", msg->number);
    if (msg->rank < 0 || msg->rank >= c->nranks || msg->what > FCC_PREPARED_CODE)
        return error_set(e, -EINVAL, "prepared %u: memory %u of rank %d: allowed are 0 to %d of ranks 0 to %d", p->number,
                         msg->what, msg->rank, FCC_PREPARED_CODE, c->nranks - 1);
    if (msg->what == FCC_PREPARED_RESULT)
        return result_give(p, msg->rank, out, fd, e);
    if (msg->what == FCC_PREPARED_INPUT)
        return input_give(p, msg->rank, out, fd, e);
    if (msg->what == FCC_PREPARED_AREA) {
        out->memory = p->ranks[msg->rank].area.kind;
        out->map_bytes = p->ranks[msg->rank].area.bytes;
        *fd = p->ranks[msg->rank].area_fd;
        return 0;
    }
    if (msg->rank != m->rank)
        return error_set(e, -EPERM, "prepared %u: rank %d asks for the %s of rank %d", p->number, m->rank,
                         msg->what == FCC_PREPARED_CODE ? "kernel" : "plan", msg->rank);
    if (msg->what == FCC_PREPARED_CODE)
        return code_give(p, msg->rank, out, fd, e);
    off_t bytes = lseek(p->ranks[m->rank].plan_fd, 0, SEEK_END);
    out->memory = FCC_MEMORY_HOST;
    out->map_bytes = (uint64_t)bytes;
    *fd = p->ranks[m->rank].plan_fd;
    return plugin_file(c->dev.ops->kind, c->worker->config.plugin_dir, out->plugin, sizeof(out->plugin), e);
}
