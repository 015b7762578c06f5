/* SPDX-License-Identifier: MIT
 *
 * gpu_kernels.c - how long the operators' kernels take, through the GPU plug-in and without a daemon.
 *
 *   gpu_kernels [OPTION...] OPERATOR SHAPE... [OPERATOR SHAPE...]
 *   gpu_kernels [OPTION...] --issue          the shapes that goals are set for (tests/bench/gpu_kernels.shapes)
 *   gpu_kernels [OPTION...] --shapes FILE
 *
 * OPERATOR is gemv, gemm, embedding or noop (which has no SHAPE). A SHAPE is sizes: m=1,n=8192,k=7168,dtype=bf16, or
 * tables=64,dim=128,batch=4096,ids=32,rows=100000,dtype=f32,zipf=1.05; also schedule=..., slice_rows=... and slice_cols=....
 *
 * Results are checked before and after the times are taken: all must have been written, and some hundred of each rank are
 * compared with double precision on the CPU. Prints one line for each shape, with -v more. Without a GPU it says so.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/gpu_kernels.h"

#define SHAPES_FILE "tests/bench/gpu_kernels.shapes" /* seen from the repository's root */
#define EXIT_USAGE 2

enum { ROWS_MOST = 512, SAMPLES_MOST = 10000 };

static struct row rows[ROWS_MOST];
static int nrows;

static int usage(const char *what, const char *text)
{
    (void)fprintf(
        stderr,
        "gpu_kernels: %s \"%s\"\n"
        "usage: gpu_kernels [--plugin-dir DIR] [--device cuda|hip] [--ranks N] [--schedule fused|sequential|compute_only|"
        "comm_only]\n                   [--samples N] [--warmup N] [--seed N] [--gated] [-v] (--issue | --shapes FILE | "
        "OPERATOR SHAPE...)\n",
        what, text);
    return -EINVAL;
}

/* ---- shapes ---- */

static int operator_by_word(const char *word)
{
    static const struct {
        const char *name;
        enum fcc_op op;
    } names[] = {{"gemv", FCC_OP_GEMV_ALL_REDUCE},
                 {"gemm", FCC_OP_GEMM_ALL_TO_ALL},
                 {"embedding", FCC_OP_EMBEDDING_ALL_TO_ALL},
                 {"noop", FCC_OP_NOOP}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(word, names[i].name) == 0)
            return (int)names[i].op;
    return op_by_name(word);
}

static int schedule_by_name(const char *name)
{
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMM_ONLY; kind++)
        if (strcmp(name, schedule_name((enum fcc_schedule_kind)kind)) == 0)
            return kind;
    return -ENOENT;
}

static bool number_read(const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;

    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        return false;
    *out = value;
    return true;
}

/* "key=value" into the row. */
static bool pair_read(struct row *row, const char *key, const char *value)
{
    const struct {
        const char *name;
        int64_t *target;
    } sizes[] = {{"m", &row->m},
                 {"n", &row->n},
                 {"k", &row->k},
                 {"tables", &row->tables},
                 {"dim", &row->dim},
                 {"batch", &row->batch},
                 {"ids", &row->ids},
                 {"rows", &row->rows},
                 {"slice_rows", &row->slice_rows},
                 {"slice_cols", &row->slice_cols}};
    char *end;
    int number;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (strcmp(key, sizes[i].name) == 0)
            return number_read(value, 1, INT32_MAX, sizes[i].target);
    if (strcmp(key, "dtype") == 0) {
        number = dtype_by_name(value);
        row->dtype = (enum fcc_dtype)number;
        return number == FCC_F32 || number == FCC_F16 || number == FCC_BF16;
    }
    if (strcmp(key, "schedule") == 0) {
        number = schedule_by_name(value);
        row->kind = (enum fcc_schedule_kind)number;
        return number > 0;
    }
    if (strcmp(key, "zipf") == 0) {
        row->zipf = strtod(value, &end);
        return end != value && !*end && row->zipf >= 0 && row->zipf <= 10;
    }
    return false;
}

/* All of the operator's sizes, and only those, must have been given. */
static bool sizes_fit(const struct row *r)
{
    bool dense = r->op == FCC_OP_GEMV_ALL_REDUCE || r->op == FCC_OP_GEMM_ALL_TO_ALL,
         bags = r->op == FCC_OP_EMBEDDING_ALL_TO_ALL;

    return dense == (r->m && r->n && r->k) && bags == (r->tables && r->dim && r->batch && r->ids && r->rows) &&
           !(dense && (r->tables || r->dim || r->batch || r->ids || r->rows || r->zipf > 0)) &&
           !(bags && (r->m || r->n || r->k)) && (!bags || r->tables <= FCC_MAX_TABLES);
}

static int row_add(enum fcc_op op, const char *shape, enum fcc_schedule_kind kind)
{
    char copy[sizeof(rows[0].text)], *rest = copy, *pair;
    struct row *row = &rows[nrows];

    if (nrows == ROWS_MOST || strlen(shape) >= sizeof(copy) - 24)
        return usage("too much:", shape);
    *row = (struct row){.op = op, .kind = kind, .dtype = op == FCC_OP_EMBEDDING_ALL_TO_ALL ? FCC_F32 : FCC_BF16};
    (void)snprintf(row->text, sizeof(row->text), "%s%s%s", op_name(op), *shape ? " " : "", shape);
    (void)snprintf(copy, sizeof(copy), "%s", shape);
    while ((pair = strsep(&rest, ",")) && *shape) {
        char *value = strchr(pair, '=');
        if (value)
            *value++ = '\0';
        if (!value || !pair_read(row, pair, value))
            return usage("in the shape", shape);
    }
    if (!sizes_fit(row))
        return usage("sizes are missing in, or are not of the operator of", row->text);
    nrows++;
    return 0;
}

/* An operator's name, or a shape of the operator that was named last. */
static int word_add(const char *word, int *op, enum fcc_schedule_kind kind)
{
    int named = strchr(word, '=') ? -ENOENT : operator_by_word(word);

    if (named >= 0) {
        *op = named;
        return named == FCC_OP_NOOP ? row_add(FCC_OP_NOOP, "", kind) : 0;
    }
    if (*op <= 0 || !strchr(word, '='))
        return usage("neither an operator nor a shape of one:", word);
    return row_add((enum fcc_op) * op, word, kind);
}

/* The same words in a file; '#' begins a comment. */
static int file_add(const char *path, enum fcc_schedule_kind kind)
{
    FILE *file = fopen(path, "re");
    char line[512];
    int op = -ENOENT, status = 0;

    if (!file)
        return usage(strerror(errno), path);
    while (status == 0 && fgets(line, sizeof(line), file)) {
        char *rest = line, *word;
        line[strcspn(line, "#\n")] = '\0';
        while (status == 0 && (word = strsep(&rest, " \t")))
            status = *word ? word_add(word, &op, kind) : 0;
    }
    (void)fclose(file);
    return status;
}

/* ---- the table ---- */

static void cell_print(const struct quartiles *q, bool all)
{
    if (q->n == 0)
        (void)printf(all ? "       -                  " : "       -");
    else if (all)
        (void)printf(" %7.1f [%7.1f %7.1f]", q->median, q->low, q->high);
    else
        (void)printf(" %7.1f", q->median);
}

static void header_print(const struct options *o)
{
    (void)printf("# %d x %s, %d ranks, %d samples, seed %" PRIu64 "%s; us, medians [quartiles]\n", bench.ngpus, bench.name,
                 bench.nranks, o->samples, o->seed, o->gated ? ", GPUs begin together" : "");
    (void)printf("# span: of the slowest GPU's kernel; trace: first slice's start to last slice's end; computed, put, reduced, "
                 "waited: the last such slice's end, and skew: the last GPU's first start, all from the first slice's start;\n"
                 "# host: from %s to all done; floor: bytes at 4.3 TB/s, operations at 660 TFLOP/s (f32 60), bytes to peers at "
                 "367 GB/s\n",
                 o->gated ? "the common begin" : "before the first launch");
    (void)printf("#%7s %19s %7s %19s %7s %7s %7s %7s %7s %7s %7s %-6s %6s %8s  %s\n", "span", "", "trace", "", "comp'd", "put",
                 "reduced", "waited", "skew", "host", "floor", "by", "/floor", "wrong", "shape");
}

static void result_print(const struct row *row, const struct result *r, bool verbose)
{
    const struct quartiles *time = r->span.n ? &r->span : &r->trace;
    const struct quartiles *computed = r->ends[SLICE_COMPUTE_PUT].n ? &r->ends[SLICE_COMPUTE_PUT] : &r->ends[SLICE_COMPUTE];
    char wrong[32] = "-";

    cell_print(&r->span, true);
    cell_print(&r->trace, true);
    cell_print(computed, false);
    cell_print(&r->ends[SLICE_PUT], false);
    cell_print(&r->ends[SLICE_REDUCE], false);
    cell_print(&r->ends[SLICE_WAIT], false);
    cell_print(&r->skew, false);
    cell_print(&r->host, false);
    if (r->floor > 0 && time->n)
        (void)printf(" %7.1f %-6s %6.2f", r->floor, r->floor_by, time->median / r->floor);
    else
        (void)printf("       - %-6s      -", "");
    if (r->wrong >= 0)
        (void)snprintf(wrong, sizeof(wrong), "wrong: %" PRId64, r->wrong);
    (void)printf(" %8s  %s %s\n", wrong, row->text, schedule_name(row->kind));
    if (r->what_is_wrong[0])
        (void)printf("  WRONG: %s\n", r->what_is_wrong);
    if (verbose) {
        (void)printf("  %s\n  host [%.1f %.1f], skew [%.1f %.1f]\n", r->plan, r->host.low, r->host.high, r->skew.low,
                     r->skew.high);
        for (int k = SLICE_COMPUTE_PUT; k <= SLICE_WAIT; k++)
            if (r->ends[k].n)
                (void)printf("  last %s ends at %.1f [%.1f %.1f]\n", slice_kind_name((enum slice_kind)k), r->ends[k].median,
                             r->ends[k].low, r->ends[k].high);
        if (r->idle.n)
            (void)printf("  a workgroup has computed its last slice %.1f [%.1f %.1f] before the last one has, on average\n",
                         r->idle.median, r->idle.low, r->idle.high);
    }
    (void)fflush(stdout);
}

/* 1 if it failed or its result was wrong. */
static int row_measure(const struct row *row, const struct options *o)
{
    struct result result;
    struct error e = {0};

    if (row_run(row, o, &result, &e)) {
        (void)printf("FAILED: %s: %s\n", row->text, e.text);
        (void)fflush(stdout);
        return 1;
    }
    result_print(row, &result, o->verbose);
    return result.wrong > 0;
}

/* ---- options ---- */

enum {
    OPTION_PLUGIN_DIR = 256,
    OPTION_DEVICE,
    OPTION_RANKS,
    OPTION_SCHEDULE,
    OPTION_SAMPLES,
    OPTION_WARMUP,
    OPTION_SEED,
    OPTION_GATED,
    OPTION_ISSUE,
    OPTION_SHAPES
};

struct choice {
    struct options options;
    enum fcc_schedule_kind kind;
    const char *file;
};

static int option_read(int option, const char *value, struct choice *c)
{
    int64_t number = 0;
    bool well = true;

    switch (option) {
    case OPTION_PLUGIN_DIR:
        c->options.plugin_dir = value;
        break;
    case OPTION_DEVICE:
        c->options.device = value;
        break;
    case OPTION_RANKS:
        well = number_read(value, 1, FCC_MAX_RANKS, &number);
        c->options.nranks = (int)number;
        break;
    case OPTION_SCHEDULE:
        c->kind = (enum fcc_schedule_kind)schedule_by_name(value);
        well = schedule_by_name(value) > 0;
        break;
    case OPTION_SAMPLES:
        well = number_read(value, 1, SAMPLES_MOST, &number);
        c->options.samples = (int)number;
        break;
    case OPTION_WARMUP:
        well = number_read(value, 0, SAMPLES_MOST, &number);
        c->options.warmup = (int)number;
        break;
    case OPTION_SEED:
        well = number_read(value, 0, INT64_MAX, &number);
        c->options.seed = (uint64_t)number;
        break;
    case OPTION_GATED:
        c->options.gated = true;
        break;
    case OPTION_ISSUE:
        c->file = SHAPES_FILE;
        break;
    case OPTION_SHAPES:
        c->file = value;
        break;
    case 'v':
        c->options.verbose = true;
        break;
    default:
        return -EINVAL;
    }
    return well ? 0 : usage("not allowed:", value);
}

static int choice_read(int argc, char **argv, struct choice *c)
{
    static const struct option names[] = {{"plugin-dir", required_argument, NULL, OPTION_PLUGIN_DIR},
                                          {"device", required_argument, NULL, OPTION_DEVICE},
                                          {"ranks", required_argument, NULL, OPTION_RANKS},
                                          {"schedule", required_argument, NULL, OPTION_SCHEDULE},
                                          {"samples", required_argument, NULL, OPTION_SAMPLES},
                                          {"warmup", required_argument, NULL, OPTION_WARMUP},
                                          {"seed", required_argument, NULL, OPTION_SEED},
                                          {"gated", no_argument, NULL, OPTION_GATED},
                                          {"issue", no_argument, NULL, OPTION_ISSUE},
                                          {"shapes", required_argument, NULL, OPTION_SHAPES},
                                          {NULL, 0, NULL, 0}};
    int option, op = -ENOENT, status = 0;

    while (status == 0 && (option = getopt_long(argc, argv, "v", names, NULL)) != -1)
        status = option_read(option, optarg ? optarg : "", c);
    if (status == 0 && c->file)
        status = file_add(c->file, c->kind);
    for (; status == 0 && optind < argc; optind++)
        status = word_add(argv[optind], &op, c->kind);
    return status || nrows ? status : usage("no shape:", argv[0]);
}

int main(int argc, char **argv)
{
    struct choice c = {.options = {.plugin_dir = "", .samples = 30, .warmup = 5, .seed = (uint64_t)time(NULL)},
                       .kind = FCC_SCHEDULE_FUSED};
    struct error e = {0};
    int failed = 0;

    if (choice_read(argc, argv, &c))
        return EXIT_USAGE;
    (void)setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1); /* as the daemon's worker has it */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 1);    /* no kernel is loaded while another one waits */
    int status = bench_open(&c.options, &e);
    if (status == -ENODEV) {
        (void)printf("skipped: no GPU (%s)\n", e.text);
        return EXIT_SUCCESS;
    }
    if (status) {
        (void)fprintf(stderr, "gpu_kernels: %s\n", e.text);
        return EXIT_FAILURE;
    }
    header_print(&c.options);
    for (int i = 0; i < nrows; i++)
        failed += row_measure(&rows[i], &c.options);
    bench_close();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
