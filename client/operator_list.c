/* SPDX-License-Identifier: MIT
 *
 * operator_list.c - the operators' rows as text, for bindings.
 */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>

#include "kernels/plan/spec.h"
#include "proto/fccclient.h"

/* Prints " NAME:KIND" of the member at this offset of an operator's arguments. Returns the member's bytes. */
static size_t member_print(const struct op_spec *op, size_t at, FILE *out)
{
    static const char *const roles[] = {[TENSOR_INPUT] = "input", [TENSOR_RESULT] = "result", [TENSOR_SHARED] = "shared"};

    for (const struct tensor_spec *t = op->tensors; t < op->tensors + op->ntensors; t++)
        if (t->at == at)
            return (void)fprintf(out, " %s:%s%s", t->name, roles[t->role], t->optional ? "?" : ""), sizeof(struct fcc_tensor);
    for (const struct attr_spec *a = op->attrs; a < op->attrs + op->nattrs; a++) {
        if (a->at == at && a->kind == ATTR_NUMBER)
            return (void)fprintf(out, " %s:i%d", a->name, 8 * a->bytes), a->bytes;
        if (a->at == at)
            return (void)fprintf(out, " %s:numbers%s", a->name, a->kind == ATTR_RANKS ? "?" : ""), sizeof(int64_t *);
        if (a->kind == ATTR_LIST && a->count_at == at)
            return (void)fprintf(out, " %s:i32", a->count_name), sizeof(int32_t);
    }
    for (int i = 0; i < DEVICE_COUNTS; i++)
        if (op->device_counts[i].name && op->device_counts[i].at == at)
            return (void)fprintf(out, " %s:device", op->device_counts[i].name), sizeof(int64_t *);
    if (op->values_at == at)
        return (void)fprintf(out, " %s:values", op->values_name), sizeof(int64_t *);
    assert(op->schedule_at == at);
    return (void)fprintf(out, " schedule:schedule"), 8 * sizeof(uint32_t);
}

static char operators_text[4096];

static void operators_print(void)
{
    static const char *const binds[] = {[BIND_NEVER] = "never", [BIND_REPEATED] = "repeated", [BIND_PREPARED] = "prepared"};
    FILE *out = fmemopen(operators_text, sizeof(operators_text), "w");

    for (unsigned i = 0; out && i < FCC_OP_COUNT; i++) {
        const struct op_spec *op = op_spec(i);
        if (op->inside)
            continue;
        (void)fprintf(out, "%s %s", op->name, binds[op->bind]);
        for (size_t at = 0; at < op->args_bytes;)
            at += member_print(op, at, out);
        (void)fputc('\n', out);
    }
    if (out)
        (void)fclose(out);
}

const char *fcc_operators(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, operators_print);
    return operators_text;
}
