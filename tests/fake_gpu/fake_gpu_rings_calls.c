/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_rings_calls.c - what the client library calls of rings on fake GPUs: they are opened, and runs are put onto streams.
 */
#include "tests/fake_gpu/fake_gpu_rings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/plan.h"

static void call_check_contract(const struct rings *r, const struct gpu_collective *w)
{
    wrong(!w->number || w->number > INT32_MAX, "a collective without a number");
    wrong(strnlen(w->refusal, sizeof(w->refusal)) == sizeof(w->refusal), "a refusal without an end");
    if (w->refusal[0])
        return;
    wrong(w->dtype ? w->element_bytes != dtype_size((enum fcc_dtype)w->dtype) : w->element_bytes != 1, "bytes of an element");
    wrong(w->in_elements < 0 || w->out_elements < 0, "a length below 0");
    wrong((!w->in && w->in_elements) || (!w->out && w->out_elements), "elements of an absent vector");
    wrong(w->root >= r->nranks, "a root that is no rank");
    for (uint32_t p = 0; p < r->nranks; p++)
        wrong(w->in_share == VECTOR_COUNTED && (w->send[p] < 0 || w->expected[p] < -1), "counts");
    wrong((w->counts || w->received) && (w->in_share != VECTOR_COUNTED || w->row_elements < 1),
          "counts in memory, and no rows");
    wrong(w->rows_most < 0 || (w->row_elements && w->rows_most > w->in_elements / w->row_elements), "more rows than there are");
}

int rings_call_push(const struct rings_call *what, void *stream)
{
    struct rings *r = what->rings;
    struct rings_call *call = malloc(sizeof(*call));
    int capturing = 0, result = r->driver.capturing(stream, &capturing);

    *call = *what;
    call->is_captured = capturing != 0;
    if (what->product.bags.table_rows) {
        const size_t bytes = what->product.bags.ntables * sizeof(call->table_rows[0]);
        call->table_rows = malloc(bytes + 1);
        wrong(!call->table_rows, "no memory");
        memcpy(call->table_rows, what->product.bags.table_rows, bytes);
        call->product.bags.table_rows = call->table_rows;
    }
    wrong(call->multiplies && !call->product.captured != !capturing, "a product that says of a capture what is not so");
    wrong(capturing && what->what.refusal[0], "a refusal is captured");
    if (call->is_captured) {
        call->before = r->captured;
        r->captured = call;
        return result ? result : r->driver.function_push(stream, rings_call_run, call);
    }
    (void)atomic_fetch_add(&r->enqueued, 1);
    if (!result)
        result = r->driver.function_push(stream, rings_call_run, call);
    if (!result)
        return 0;
    (void)atomic_fetch_sub(&r->enqueued, 1);
    free(call->table_rows);
    free(call);
    return result;
}

int rings_collective(struct rings *r, const struct gpu_collective *what, void *stream, struct error *e)
{
    int status = call_check(FAKE_PREPARED_START, r->gpu.number, "launching a collective", e);

    call_check_contract(r, what);
    if (!status && rings_call_push(&(struct rings_call){.rings = r, .what = *what}, stream))
        status = error_set(e, -EIO, "cuda GPU %d: launching a collective: the driver refused", r->gpu.number);
    return status;
}

int rings_product(struct rings *r, const struct rings_product *what, void *stream, struct error *e)
{
    const struct gpu_collective sum = {
        .op = what->op, .number = what->number, .element_bytes = 1, .continues = what->continues};
    int status = call_check(FAKE_PREPARED_START, r->gpu.number, "launching a product", e);

    wrong(!what->number || what->number > INT32_MAX, "a product without a number");
    const bool bags = what->bags.table_rows != NULL;
    wrong(bags && (what->k || what->x || what->bags.dim < 1 || what->n != what->bags.ntables * what->bags.dim ||
                   what->bags.dim > RINGS_DIM_MOST || (what->bags.ntables && (!what->w || !what->bags.offsets))),
          "the tensors of bags");
    wrong(what->m < (!what->puts && !what->copies) || what->n < 0 || what->k < 0 || !what->y ||
              (what->m && what->k && !bags && (!what->x || (!what->copies && !what->w))),
          "a product's tensors");
    wrong(what->copies && what->k != what->n, "rows that are copied");
    wrong(what->library && (!r->has_library || what->puts || what->copies || bags), "a product by the library");
    wrong(!what->library && !what->puts && !what->copies && !what->factors && what->m > FCC_GEMV_MAX_M,
          "more rows than a kernel takes");
    wrong(what->continues && what->whole_rows.is_there && !what->library && !what->copies,
          "stages of whole rows behind a product that continues a run");
    wrong(what->library && what->factors, "a product by the library of factors that it does not take");
    wrong(what->reduction && (!what->copies || what->puts), "a reduction of what is no sum of rows");
    for (uint32_t p = 0; p < r->nranks && what->puts; p++)
        wrong(what->rows[p] < 0, "rows below 0");
    if (!status && rings_call_push(&(struct rings_call){.rings = r, .what = sum, .product = *what, .multiplies = true}, stream))
        status = error_set(e, -EIO, "cuda GPU %d: launching a product: the driver refused", r->gpu.number);
    return status;
}

struct rings *rings_open(int gpu, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *memory,
                         const struct client_driver *driver)
{
    struct rings *r = calloc(1, sizeof(*r));

    r->gpu.number = gpu;
    r->driver = *driver;
    r->rank = plan->rank;
    r->nranks = plan->shape.nranks;
    r->level = (uint32_t)plan->shape.n;
    r->has_library = r->level != 0;
    wrong(2 * plan->slots_bytes < rings_bytes(r->nranks), "too little memory for rings");
    wrong(!memory->failed || memory->failed % 8, "no word of runs that were given up");
    for (uint32_t p = 0; p < r->nranks; p++) {
        r->heads[p] = pointer(memory->areas[p] + plan->slots_at);
        r->failures[p] = pointer(memory->areas[p] + GPU_PREPARED_FAILURE_AT);
    }
    r->products = pointer(memory->areas[r->rank] + GPU_FLAG_RUN * sizeof(uint64_t));
    r->begun = pointer(memory->begun);
    r->ended = pointer(memory->ended);
    r->failed = pointer(memory->failed);
    r->clash = pointer(memory->clash);
    return r;
}

void rings_close(struct rings *r)
{
    wrong(r->enqueued != 0, "rings are closed whose collectives have not ended");
    for (struct rings_call *call = r->captured, *before; call; call = before) {
        before = call->before;
        free(call->table_rows);
        free(call);
    }
    free(r);
}
