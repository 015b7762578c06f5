/* SPDX-License-Identifier: MIT
 *
 * code.h - generated code of programs' steps on GPUs: which kernel a launch has. Engine thread.
 *
 * A step's source (kernels/generate/generate.h) follows from its checked words, but for the numbers that a run may have anew; from the tensors' dtypes; and
 * from the number of ranks. When a step comes for the first time, one of some threads (code_make.h) makes the source and compiles it, or reads what came of it from
 * the user's cache on disk; so different steps are compiled side by side. The engine goes on meanwhile, and the interpreter runs the step. The first launch that comes when the kernel is made and nothing is
 * in the GPUs' queues loads it: to load a kernel may wait for the GPU, whose queue may wait for a client. Where that fails, the interpreter goes on running
 * the step. Why it does is said once in the log, and in each trace.
 *
 * Ranks need not agree on who runs which. One part of an operator may have the interpreter while another has a generated kernel, for the two are one
 * program for one plan: they take the same slices from the same counters, read the same inputs of all ranks, make each element of the same operations in the
 * same order and each sum by the same tree, store the same bits to the same places, and raise the same flags behind them. No rank sees anything of another
 * rank's kernel but these stores and flags.
 *
 * Bound steps, which ranks' own processes launch, have no interpreter, as a graph would keep it for ever: a rank gets the compiled kernel when it is there,
 * or hears why there is none (comm/bound/bind.c). Such a kernel has an entry of its own, whose image stays, and which the worker never loads.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_CODE_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_CODE_H

#include "daemon/worker/device/launch.h"

struct gpus;
struct gpu_codes;
struct gpu_code_entry;

/* Lets the launch's part, which runs nowhere, run the kernel of its step: a generated one, or the interpreter; p->code_text says which. Nothing happens for
 * other operators. */
void gpu_code_choose(struct launch *l, struct launch_part *p);
/* Whether a request may be enqueued behind others: no kernel of its step waits to be loaded. */
bool gpu_code_may_follow(const struct gpus *g, const struct op_args *args, int nranks);
/* The kernel of a step that a rank's own process is to launch on a GPU, which is made from now on if it has not been asked for before. It stays as long as
 * the worker has its GPUs. -ENOMEM */
int gpu_code_ask(struct gpus *g, int gpu, const struct op_args *args, int nranks, struct gpu_code_entry **out, struct error *e);
/* What has been made, as plug-ins load it; it stays the entry's. -EAGAIN: it is being made. -EOPNOTSUPP: it cannot be, and the text says why. */
int gpu_code_image(const struct gpu_code_entry *entry, const void **image, size_t *bytes, struct error *e);
/* Whether some kernel is being made. g: NULL: there are no GPUs. */
bool gpu_codes_are_made(const struct gpus *g);
/* Waits for the compiler, if it compiles now. No launch is left. */
void gpu_codes_free(struct gpus *g);

#endif
