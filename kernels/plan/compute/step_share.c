/* SPDX-License-Identifier: MIT
 *
 * step_share.c - whether tensors of a program's step share memory. Tensors that lie scattered may lie between each other.
 */
#include <stdlib.h>

#include "kernels/plan/compute/step.h"

/* Memory that a tensor of the step has, or one tensor of its table. */
struct span {
    const unsigned char *begin, *end;
    int tensor; /* of the step */
};

static int span_order(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The spans of the tensors that are used, a bit each: [their number]. NULL: no memory. */
static struct span *spans_make(const struct op_args *args, const struct code *code, uint32_t used, size_t *count)
{
    const size_t most = code->begins ? (size_t)code->head->tensors : 1;
    struct span *spans = calloc((CODE_TENSORS + 1) * most + 1, sizeof(*spans));

    *count = 0;
    for (int t = 0; t <= CODE_OUT && spans; t++) {
        const int index = t == CODE_OUT ? STEP_OUT : STEP_TENSOR + t;
        const struct tensor *tensor = &args->tensors[index];
        const int64_t *places = code->begins ? step_places(args, code, index) : NULL;
        const size_t size = dtype_size(tensor->dtype);
        for (size_t k = 0; k < (places ? most : 1) && used >> t & 1; k++) {
            const size_t n = (size_t)(places ? code->begins[k + 1] - code->begins[k] : tensor->shape[0]);
            const unsigned char *begin = tensor->data + (places ? (size_t)places[k] * size : 0);
            if (n)
                spans[(*count)++] = (struct span){begin, begin + n * size, t};
        }
    }
    return spans;
}

bool step_tensors_share(const struct op_args *args)
{
    const struct code code = step_code(args);
    const uint32_t stores = code_stores(&code), used = stores | code_loads(&code);
    const unsigned char *ends[CODE_TENSORS + 1] = {NULL}; /* of each tensor's spans so far */
    size_t count;
    struct span *spans = spans_make(args, &code, used, &count);
    bool share = !spans;

    if (spans)
        qsort(spans, count, sizeof(*spans), span_order);
    for (size_t i = 0; i < count && !share; i++) {
        const struct span *s = &spans[i];
        for (int t = 0; t <= CODE_OUT; t++)
            share |= t != s->tensor && ends[t] > s->begin && (stores >> t | stores >> s->tensor) & 1;
        ends[s->tensor] = ends[s->tensor] > s->end ? ends[s->tensor] : s->end;
    }
    free(spans);
    return share;
}
