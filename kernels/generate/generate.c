/* SPDX-License-Identifier: MIT
 *
 * generate.c - makes the source of a step's kernel: first what is loaded, then one expression for each instruction, in the program's order, then what is
 * stored. So all loads of a thread's elements are under way together, which is what a kernel that waits for memory needs. A load of what the step has
 * stored before is the stored value, rounded as memory would.
 */
#include "kernels/generate/generate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOADS_MAX CODE_INSTRUCTIONS_MAX
#define WIDTH 4      /* elements of a thread at a time, 16 bytes of f32 */
#define WIDTH_HALF 8 /* where all tensors have 16 bits */
/* A value's number: of the instruction that makes it; or, with these added, of the one that has a number, or of a load. */
#define VALUE_NUMBER 10000
#define VALUE_LOADED 20000
#define VALUE_SUM 30000 /* of the ranks' inputs */

struct maker {
    const struct generate *g;
    FILE *to;
    uint32_t tensors, stored;                                /* a bit for each that is used, that is stored into */
    uint32_t summed;                                         /* ... that gets sums */
    const struct code_operand *to_operand[CODE_TENSORS + 1]; /* of a tensor that is stored into */
    int value[CODE_REGISTERS];                               /* the value that a register has by now */
    int kept[CODE_TENSORS + 1];                              /* the value that was stored last; -1: none */
    int loaded[LOADS_MAX];                                   /* operands that are loaded before anything is stored, each once */
    int nloaded;
    bool table, sums; /* elements of a table's tensors; the step's own sums */
    bool tensors_sum; /* ... of each such tensor */
    int64_t each;     /* elements of such a sum; of tensors: 0 */
    uint32_t nsums;   /* that have been printed */
    int32_t line;     /* of the last comment */
    struct error *e;
};

/* The functions of kernels/gpu/device/generated.h. */
static const char *const functions[OPERATIONS] = {
    [OP_ADD] = "step_add",
    [OP_SUB] = "step_sub",
    [OP_MUL] = "step_mul",
    [OP_DIV] = "step_div",
    [OP_LT] = "step_lt",
    [OP_LE] = "step_le",
    [OP_GT] = "step_gt",
    [OP_GE] = "step_ge",
    [OP_EQ] = "step_eq",
    [OP_NE] = "step_ne",
    [OP_NEG] = "step_neg",
    [OP_MAX] = "step_max",
    [OP_MIN] = "step_min",
    [OP_POW] = "step_pow",
    [OP_ABS] = "step_abs",
    [OP_SQRT] = "step_sqrt",
    [OP_RSQRT] = "step_rsqrt",
    [OP_EXP] = "step_exp",
    [OP_LOG] = "step_log",
    [OP_TANH] = "step_tanh",
    [OP_SIGMOID] = "step_sigmoid",
    [OP_RELU] = "step_relu",
    [OP_GELU] = "step_gelu",
    [OP_SILU] = "step_silu",
    [OP_SELECT] = "step_select",
    [OP_F16] = "step_rounded<gpu_f16>",
    [OP_BF16] = "step_rounded<gpu_bf16>",
};

static const char *dtype_text(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? "float" : dtype == FCC_F16 ? "gpu_f16" : "gpu_bf16";
}

/* t0, t1, ...; out. */
static const char *tensor_text(int64_t tensor, char name[16])
{
    (void)snprintf(name, 16, tensor == CODE_OUT ? "out" : "t%d", (int)tensor);
    return name;
}

/* ---- what a step has ---- */

static const struct code_operand *operand_of(const struct maker *m, const struct code_instruction *i)
{
    return &m->g->code->operands[i->from[1]];
}

/* Whether an operand is the element that a store to its tensor is to. */
static bool is_own(const struct maker *m, const struct code_operand *o)
{
    return o->index == CODE_OWN || (o->index == CODE_WHOLE && !m->g->code->head->sliced);
}

static int load_number(const struct maker *m, int operand)
{
    for (int k = 0; k < m->nloaded; k++)
        if (memcmp(&m->g->code->operands[m->loaded[k]], &m->g->code->operands[operand], sizeof(struct code_operand)) == 0)
            return k;
    return -1;
}

/* Finds what is loaded and stored, and refuses what has no order of loads before stores. */
static int step_look(struct maker *m)
{
    const struct code *code = m->g->code;

    for (int64_t k = 0; k < code->head->instructions; k++) {
        const struct code_instruction *i = &code->instructions[k];
        if (i->op != CODE_LOAD && i->op != CODE_STORE && i->op != CODE_SUM)
            continue;
        const struct code_operand *o = operand_of(m, i);
        m->tensors |= 1u << o->tensor;
        if (i->op == CODE_SUM && m->sums && m->tensors_sum != (o->index == CODE_TENSOR))
            return error_set(m->e, -EOPNOTSUPP, "line %d: a sum of tensors beside others", i->line);
        if (i->op == CODE_SUM) {
            m->sums = true;
            m->tensors_sum = o->index == CODE_TENSOR;
            m->each = m->tensors_sum ? 0 : o->div;
            m->summed |= 1u << o->tensor;
        } else if (i->op == CODE_STORE) {
            if (m->stored >> o->tensor & 1 && memcmp(m->to_operand[o->tensor], o, sizeof(*o)) != 0)
                return error_set(m->e, -EOPNOTSUPP, "line %d: it stores into a tensor in two ways", i->line);
            m->stored |= 1u << o->tensor;
            m->to_operand[o->tensor] = o;
        } else if (m->stored >> o->tensor & 1 && !is_own(m, o))
            return error_set(m->e, -EOPNOTSUPP, "line %d: it needs other elements of what the step has stored", i->line);
        else if (!(m->stored >> o->tensor & 1) && load_number(m, i->from[1]) < 0)
            m->loaded[m->nloaded++] = i->from[1];
    }
    return 0;
}

/* A thread's lanes of a sum are WIDTH. */
static int width_of(const struct maker *m)
{
    if (m->sums)
        return WIDTH;
    bool half = m->tensors || code_is_shared(m->g->code);

    for (int t = 0; t <= CODE_TENSORS; t++)
        half &= !(m->tensors >> t & 1) || m->g->dtypes[t] != FCC_F32;
    if (code_reduces(m->g->code))
        half &= m->g->in != FCC_F32;
    if (code_has_result(m->g->code))
        half &= m->g->dtypes[CODE_OUT] != FCC_F32;
    return half ? WIDTH_HALF : WIDTH;
}

/* ---- comments ---- */

/* A program's text is not to end the comment that it is in. */
static void comment_text(FILE *to, const char *text, size_t length)
{
    for (size_t k = 0; k < length; k++) {
        const bool ends = text[k] == '/' && k > 0 && text[k - 1] == '*';
        (void)fprintf(to, "%s%c", ends ? " " : "", text[k] < ' ' ? ' ' : text[k]);
    }
}

/* The line of an instruction, when it is another one than the last one's. */
static void line_comment(struct maker *m, int32_t line, const char *indent)
{
    size_t length = 0;
    const char *text = m->g->line_text && line != m->line ? m->g->line_text(m->g->context, line, &length) : NULL;

    if (line == m->line)
        return;
    m->line = line;
    (void)fprintf(m->to, "%s/* line %" PRId32, indent, line);
    if (text) {
        (void)fputs(": ", m->to);
        comment_text(m->to, text, length);
    }
    (void)fputs(" */\n", m->to);
}

static void tensor_comment(const struct maker *m, int tensor)
{
    const char *name = m->g->tensor_name ? m->g->tensor_name(m->g->context, tensor) : NULL;

    if (name) {
        (void)fputs(" /* ", m->to);
        comment_text(m->to, name, strlen(name));
        (void)fputs(" */", m->to);
    }
    (void)fputc('\n', m->to);
}

/* ---- members ---- */

static int sums_count(const struct maker *m)
{
    int n = 0;

    for (int64_t k = 0; k < m->g->code->head->instructions; k++)
        n += m->g->code->instructions[k].op == CODE_SUM;
    return n;
}

static void members_print(struct maker *m)
{
    const struct code *code = m->g->code;
    const bool sums = code_reduces(code), gives = code_has_result(code);
    const bool narrow = code->head->rows * code->head->inner < (INT64_C(1) << 31);
    char name[16];

    (void)fprintf(
        m->to,
        "struct step {\n    enum { WIDTH = %d, RANKS = %d, SUMS = %d, GIVES = %d, LANES = %d, TABLE = %d };\n    static "
        "constexpr int64_t EACH = %" PRId64 ";\n    typedef %s index;\n    typedef %s sum_type;\n"
        "    typedef %s out_type;\n    index first; /* of the rank's own elements */\n",
        width_of(m), m->g->nranks, sums, gives, sums_count(m), m->table, m->each, narrow ? "uint32_t" : "uint64_t",
        dtype_text(sums ? m->g->in : FCC_F32), dtype_text(gives ? m->g->dtypes[CODE_OUT] : FCC_F32));
    for (int t = 0; t <= CODE_TENSORS; t++)
        if (m->tensors >> t & 1) {
            (void)fprintf(m->to, "    %s%s *%s;", (m->stored | m->summed) >> t & 1 ? "" : "const ", dtype_text(m->g->dtypes[t]),
                          tensor_text(t, name));
            tensor_comment(m, t);
        }
    for (int64_t k = 0; k < code->head->instructions; k++) {
        if (code->instructions[k].op == CODE_NUMBER)
            (void)fprintf(m->to, "    float n%" PRId64 "; /* line %" PRId32 " */\n", k, code->instructions[k].line);
        if (code->instructions[k].op == OP_DROPOUT)
            (void)fprintf(m->to, "    struct step_dropout d%" PRId64 "; /* line %" PRId32 " */\n", k,
                          code->instructions[k].line);
        if (code->instructions[k].op == CODE_SUM)
            (void)fprintf(m->to, "    struct step_sum s%" PRId64 "; /* line %" PRId32 " */\n", k, code->instructions[k].line);
    }
    if (m->table)
        (void)fputs("    index tensor; /* of the table, whose elements are worked on */\n", m->to);
}

static void begin_print(struct maker *m)
{
    const struct code *code = m->g->code;
    char name[16];

    (void)fputs(
        "\n    __device__ __forceinline__ void begin(const struct gpu_step &step, const struct code_instruction *code)\n"
        "    {\n        (void)code;\n        first = (index)step.begin;\n",
        m->to);
    for (int t = 0; t <= CODE_TENSORS; t++)
        if (m->tensors >> t & 1)
            (void)fprintf(m->to, "        %s = (%s%s *)step.tensor[%d];\n", tensor_text(t, name),
                          (m->stored | m->summed) >> t & 1 ? "" : "const ", dtype_text(m->g->dtypes[t]), t);
    for (int64_t k = 0; k < code->head->instructions; k++) {
        if (code->instructions[k].op == CODE_NUMBER)
            (void)fprintf(m->to, "        n%" PRId64 " = (float)code[%" PRId64 "].number;\n", k, k);
        if (code->instructions[k].op == OP_DROPOUT)
            (void)fprintf(m->to, "        d%" PRId64 ".begin(code[%" PRId64 "]);\n", k, k);
        if (code->instructions[k].op == CODE_SUM)
            (void)fprintf(m->to, "        s%" PRId64 ".begin(code[%" PRId64 "]);\n", k, k);
    }
    (void)fputs("    }\n", m->to);
}

/* Which of the tensors may have a table: all whose elements are those that are worked on. */
static bool may_be_scattered(const struct maker *m, int tensor)
{
    bool whole = false;

    for (int64_t i = 0; i < m->g->code->head->operands; i++) {
        const struct code_operand *o = &m->g->code->operands[i];
        whole |= o->tensor == tensor && (o->index == CODE_WHOLE || (o->index == CODE_OWN && !m->g->code->head->sliced));
    }
    return m->table && whole && m->tensors >> tensor & 1;
}

/* What follows from the tensor of the table: where its elements are in tensors that lie scattered. */
static void segment_print(struct maker *m)
{
    char name[16];

    if (!m->table)
        return;
    (void)fputs("\n    __device__ __forceinline__ void segment(const struct gpu_step &step, int64_t number)\n    {\n"
                "        tensor = (index)number;\n",
                m->to);
    for (int t = 0; t <= CODE_TENSORS; t++)
        if (may_be_scattered(m, t))
            (void)fprintf(m->to,
                          "        %s = (%s%s *)(step.tensor[%d] + (uint64_t)step_shift(&step, %d, number) * sizeof(*%s));\n",
                          tensor_text(t, name), (m->stored | m->summed) >> t & 1 ? "" : "const ", dtype_text(m->g->dtypes[t]),
                          t, t, tensor_text(t, name));
    (void)fputs("    }\n", m->to);
}

static const char *index_text(const struct code_operand *o)
{
    return o->index == CODE_OWN ? "(e - first)" : "e";
}

/* A tensor that is stretched is loaded at once where the whole of it is aligned. */
static void wide_print(struct maker *m)
{
    char name[16];

    if (m->table)
        return; /* each load and store looks for itself */
    (void)fputs("\n    __device__ __forceinline__ bool wide(index e) const\n    {\n        return true", m->to);
    for (int k = 0; k < m->nloaded; k++) {
        const struct code_operand *o = &m->g->code->operands[m->loaded[k]];
        if (o->index == CODE_EACH || o->index == CODE_PART || (o->index == CODE_OWN && m->stored >> o->tensor & 1))
            continue; /* one element at a time; the load looks; below */
        (void)fprintf(m->to, "\n               && generated_is_wide<WIDTH>(%s + %s)", tensor_text(o->tensor, name),
                      o->index == CODE_STRETCHED ? "0" : index_text(o));
    }
    for (int t = 0; t < CODE_TENSORS; t++)
        if (m->stored >> t & 1 && m->to_operand[t]->index != CODE_PART)
            (void)fprintf(m->to, "\n               && generated_is_wide<WIDTH>(t%d + (e - first))", t);
    (void)fputs(";\n    }\n", m->to);
}

/* ---- the work ---- */

static void value_print(struct maker *m, int value)
{
    if (value == VALUE_SUM)
        (void)fputs("sum", m->to);
    else if (value >= VALUE_LOADED)
        (void)fprintf(m->to, "in.x%d", value - VALUE_LOADED);
    else
        (void)fprintf(m->to, value >= VALUE_NUMBER ? "n%d" : "v%d", value % VALUE_NUMBER);
}

static void loads_print(struct maker *m)
{
    char name[16];

    (void)fputs("\n    template <int WIDE> struct loaded {\n", m->to);
    for (int k = 0; k < m->nloaded; k++)
        (void)fprintf(m->to, "        floats<WIDE> x%d;\n", k);
    (void)fputs("    };\n\n    template <int WIDE, bool ANY> __device__ __forceinline__ void load(index e, loaded<WIDE> &in) "
                "const\n    {\n",
                m->to);
    for (int k = 0; k < m->nloaded; k++) {
        const struct code_operand *o = &m->g->code->operands[m->loaded[k]];
        (void)tensor_text(o->tensor, name);
        if (o->index == CODE_STRETCHED)
            (void)fprintf(m->to, "        in.x%d = generated_load_stretched<WIDE, ANY, %" PRId64 ", %" PRId64 ">(%s, e);\n", k,
                          o->div, o->length, name);
        else if (o->index == CODE_PART)
            (void)fprintf(m->to,
                          "        in.x%d = generated_load_part<WIDE, %" PRId64 ", %" PRId64 ">(%s, (index)(e - first));\n", k,
                          o->div, o->length, name);
        else if (o->index == CODE_EACH)
            (void)fprintf(m->to, "        in.x%d = generated_load_each<WIDE, %" PRId64 ">(%s, (index)(e - first));\n", k,
                          o->div, name);
        else if (o->index == CODE_TENSOR)
            (void)fprintf(m->to, "        in.x%d = generated_wide<WIDE>(gpu_to_f32(%s[tensor]));\n", k, name);
        else
            (void)fprintf(m->to, "        in.x%d = generated_load_at<WIDE, ANY>(%s + %s);\n", k, name, index_text(o));
    }
    (void)fputs("    }\n", m->to);
}

static void value_begin(struct maker *m, const struct code_instruction *i, int64_t k)
{
    line_comment(m, i->line, "        ");
    (void)fprintf(m->to, "        const auto v%" PRId64 " = ", k);
}

/* The value of a load: what was loaded before all work, or what the step has stored since. */
static int load_value(struct maker *m, const struct code_instruction *i, int64_t k)
{
    const struct code_operand *o = operand_of(m, i);
    const enum fcc_dtype dtype = m->g->dtypes[o->tensor];

    if (m->kept[o->tensor] < 0)
        return VALUE_LOADED + load_number(m, i->from[1]);
    if (dtype == FCC_F32)
        return m->kept[o->tensor];
    value_begin(m, i, k);
    (void)fprintf(m->to, "step_rounded<%s>(", dtype_text(dtype));
    value_print(m, m->kept[o->tensor]);
    (void)fputs(");\n", m->to);
    return (int)k;
}

static int operation_value(struct maker *m, const struct code_instruction *i, int64_t k)
{
    const bool drops = i->op == OP_DROPOUT;

    if (i->op == OP_F32)
        return m->value[i->from[0]];
    value_begin(m, i, k);
    if (drops)
        (void)fprintf(m->to, "d%" PRId64 ".of<WIDE>(", k);
    else
        (void)fprintf(m->to, "%s(", functions[i->op]);
    for (int a = 0; a < (drops ? 1 : operation_specs[i->op].arguments); a++) {
        (void)fputs(a ? ", " : "", m->to);
        value_print(m, m->value[i->from[a]]);
    }
    (void)fputs(drops ? ", e);\n" : ");\n", m->to);
    return (int)k;
}

static void instruction_print(struct maker *m, const struct code_instruction *i, int64_t k)
{
    if (i->op == CODE_SUM) {
        line_comment(m, i->line, "        ");
        (void)fprintf(m->to, "        terms[%u] = generated_wide<WIDE>(", m->nsums++);
        value_print(m, m->value[i->from[0]]);
        (void)fputs(");\n", m->to);
        return;
    }
    if (i->op == CODE_STORE) {
        const int tensor = (int)operand_of(m, i)->tensor;
        m->kept[tensor] = m->value[i->from[0]];
        return;
    }
    m->value[i->to] = i->op == CODE_NUMBER ? VALUE_NUMBER + (int)k
                      : i->op == CODE_LOAD ? load_value(m, i, k)
                                           : operation_value(m, i, k);
}

static void run_print(struct maker *m)
{
    const struct code *code = m->g->code;

    (void)fputs(
        "\n    template <int WIDE, bool ANY>\n    __device__ __forceinline__ void run(index e, const floats<WIDE> &sum, const "
        "loaded<WIDE> &in, floats<WIDE> &result,\n                                        floats<WIDE> (&terms)[LANES "
        "? LANES : 1]) const\n    {\n",
        m->to);
    m->value[0] = VALUE_SUM;
    for (int64_t k = 0; k < code->head->instructions; k++)
        instruction_print(m, &code->instructions[k], k);
    for (int t = 0; t < CODE_TENSORS; t++)
        if (m->stored >> t & 1) {
            const struct code_operand *o = m->to_operand[t];
            if (o->index == CODE_PART)
                (void)fprintf(m->to, "        generated_store_part<WIDE, %" PRId64 ", %" PRId64 ">(t%d, (index)(e - first), ",
                              o->div, o->length, t);
            else
                (void)fprintf(m->to, "        generated_store_at<WIDE, ANY>(t%d + (e - first), ", t);
            value_print(m, m->kept[t]);
            (void)fputs(");\n", m->to);
        }
    if (code_has_result(code)) {
        (void)fputs("        result = generated_wide<WIDE>(", m->to);
        value_print(m, m->value[code->head->result]);
        (void)fputs(");\n", m->to);
    }
    (void)fputs("    }\n", m->to);
}

static void sums_print(struct maker *m)
{
    int n = 0;

    if (m->sums) {
        (void)fputs("\n    __device__ __forceinline__ void sum_store(int sum, int64_t at, double total) const\n    {\n", m->to);
        for (int64_t k = 0; k < m->g->code->head->instructions; k++) {
            const struct code_instruction *i = &m->g->code->instructions[k];
            if (i->op == CODE_SUM)
                (void)fprintf(m->to, "        if (sum == %d)\n            s%" PRId64 ".store(t%d + at, total);\n", n++, k,
                              (int)operand_of(m, i)->tensor);
        }
        (void)fputs("    }\n", m->to);
    }
    (void)fputs("};\n\n", m->to);
}

char *code_generate(const struct generate *g, struct error *e)
{
    char *text = NULL;
    size_t bytes = 0;

    struct maker *m = calloc(1, sizeof(*m));
    int status = m ? 0 : -ENOMEM;

    if (m) {
        *m = (struct maker){.g = g, .table = g->code->begins != NULL, .line = -1, .e = e};
        for (int t = 0; t <= CODE_TENSORS; t++)
            m->kept[t] = -1;
        status = step_look(m);
        m->to = status ? NULL : open_memstream(&text, &bytes);
    }
    if (m && m->to) {
        (void)fputs("/* A step of a program, made by fccd: one kernel. */\n#include \"kernels/gpu/device/generated.h\"\n\n",
                    m->to);
        members_print(m);
        begin_print(m);
        segment_print(m);
        wide_print(m);
        loads_print(m);
        run_print(m);
        sums_print(m);
        (void)fputs("GENERATED_KERNEL(step)\n", m->to);
        status = fclose(m->to) ? -ENOMEM : 0;
    } else if (!status) {
        status = -ENOMEM;
    }
    free(m);
    if (!status)
        return text;
    free(text);
    if (status == -ENOMEM)
        (void)error_set(e, -ENOMEM, "out of memory");
    return NULL;
}
