/* SPDX-License-Identifier: MIT
 *
 * tune_verb.c - the verb tune: ranks, each a process, tune a program together; rank 0 prints the table. The ranks that this process has started end with
 * it, and are waited for; their number is on one node.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/fccctl/bench/local.h"
#include "client/fccctl/field.h"
#include "client/fccctl/program_verb.h"

struct tune_options {
    const char *sizes, *cache;
    int64_t ranks, limit_s;
    int device; /* of device_names */
    bool local, again;
};
static const char *const device_names[] = {"cpu", "gpu", "cuda", "hip", NULL};
static const enum fcc_device_kind device_kinds[] = {FCC_DEVICE_CPU, FCC_DEVICE_GPU, FCC_DEVICE_CUDA, FCC_DEVICE_HIP};
static const char *const device_gpus[] = {"none", "auto", "cuda", "hip"}; /* fccd.conf's GPUS */
struct tuned_file {
    const char *text;
    size_t length, nsizes;
    struct fcc_program_size sizes[PROGRAM_SIZES_MAX];
};

static void progress_draw(void *argument, int done, int all)
{
    enum { WIDTH = 40 };
    static const char full[WIDTH + 1] = "########################################";

    (void)argument;
    (void)fprintf(stderr, "\rtuning [%.*s%*s] %3d %%%s", done * WIDTH / all, full, WIDTH - done * WIDTH / all, "",
                  done * 100 / all, done == all ? "\r\033[K" : "");
}

static const char *state_text(const struct fcc_tuning *t, int i)
{
    static const char *const states[] = {[FCC_TUNE_TIMED] = "timed",
                                         [FCC_TUNE_SLOW] = "not timed: slow by its estimate",
                                         [FCC_TUNE_WRONG] = "other values",
                                         [FCC_TUNE_FAILED] = "does not run",
                                         [FCC_TUNE_LATE] = "not timed: out of time"};
    const int state = t->rows[i].state;

    return i == t->winner ? "winner" : state >= 0 && state <= FCC_TUNE_LATE ? states[state] : "?";
}

/* A schedule on one line. */
static struct words schedule_line(const char *schedule)
{
    struct words w = words("%s", *schedule ? schedule : "(none)");

    for (char *c = strchr(w.text, '\n'); c; c = strchr(c, '\n'))
        if (c[1])
            *c = ';';
        else
            *c = '\0';
    return w;
}

static void tuning_json(const struct fcc_tuning *t)
{
    struct json_object *o = json_object_new_object(), *rows = json_object_new_array();

    for (int i = 0; i < t->nrows; i++)
        (void)json_object_array_add(
            rows, JSON_OBJECT({"schedule", json_text(t->rows[i].schedule)}, {"steps", json_int(t->rows[i].steps)},
                              {"estimate_s", json_number(t->rows[i].estimate_s, 9)},
                              {"measured_s", json_number(t->rows[i].measured_s, 9)}, {"state", json_text(state_text(t, i))}));
    JSON_ADD(o, {"winner", json_int(t->winner)}, {"from_cache", json_object_new_boolean(t->from_cache)},
             {"seconds", json_number(t->seconds, 6)}, {"cache", json_text(t->cache)}, {"text", json_text(t->text)},
             {"schedules", rows});
    json_print(o, true);
    (void)json_object_put(o);
}

static void tuning_print(const struct fcc_tuning *t)
{
    struct table *table = t->from_cache ? NULL : table_new(">STEPS|>ESTIMATE|>MEASURED|STATE|SCHEDULE");

    for (int i = 0; table && i < t->nrows; i++) {
        table_cell(table, "%d", t->rows[i].steps);
        table_cell(table, "%s", t->rows[i].estimate_s < 0 ? "-" : format_ns(t->rows[i].estimate_s * 1e9).text);
        table_cell(table, "%s", t->rows[i].measured_s > 0 ? format_ns(t->rows[i].measured_s * 1e9).text : "-");
        table_cell(table, "%s%s", state_text(t, i), i ? "" : ", as written");
        table_cell(table, "%s", schedule_line(t->rows[i].schedule).text);
    }
    if (table) {
        table_end(table, "");
        printf("overlap is tried of products and of rows of tables, whose exchange sends what is made while the rest is made; "
               "other statements run one "
               "after the other on cpu devices, in pieces, too, so chunk is not tried\n\n");
    }
    printf("%s in %s; cache: %s\n\nschedule\n%s", t->from_cache ? "read from a cache" : "tuned",
           format_ns(t->seconds * 1e9).text, t->cache, t->schedule);
}

/* One rank's process; its exit code. */
static int rank_run(const struct call *call, const struct tune_options *o, const struct tuned_file *f, const char *socket,
                    const struct fcc_unique_id *id, int rank)
{
    const bool draws = rank == 0 && isatty(STDERR_FILENO) && !call->json;
    const struct fcc_connect_options connect = {.socket_path = socket, .job = "fccctl-tune"};
    const struct fcc_tune_options options = {.cache = o->cache,
                                             .limit_ms = (uint32_t)o->limit_s * 1000,
                                             .again = o->again,
                                             .progress = draws ? progress_draw : NULL};
    const struct fcc_comm_options place = {.device = -1, .device_kind = device_kinds[o->device]};
    struct fcc_tuning *t = NULL;
    fcc_context *context;
    fcc_comm *comm = NULL;
    int status = fcc_connect(&connect, &context);

    if (status == 0)
        status = fcc_comm_init(context, id, (int)o->ranks, rank, &place, &comm);
    if (status == 0)
        status = fcc_program_tune(comm, f->text, f->length, f->sizes, (int)f->nsizes, &options, &t);
    if (status)
        return rank ? EXIT_UNWELL
                    : verb_error(call, status == -ECONNREFUSED ? EXIT_UNREACHABLE : EXIT_UNWELL, "%s",
                                 text_clean((char *)(uintptr_t)fcc_last_error()));
    if (rank == 0 && call->json)
        tuning_json(t);
    else if (rank == 0)
        tuning_print(t);
    fcc_tuning_free(t);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    return fflush(stdout) || ferror(stdout) ? EXIT_UNWELL : EXIT_WELL;
}

static int ranks_run(const struct call *call, const struct tune_options *o, const struct tuned_file *f, const char *socket)
{
    const struct fcc_connect_options connect = {.socket_path = socket, .job = "fccctl-tune"};
    const pid_t parent = getpid();
    pid_t pids[FCC_MAX_RANKS];
    struct fcc_unique_id id;
    int channel[2], code = EXIT_WELL, n = 0;

    /* the id is made in a process of its own: a process that has used the library is no good to fork from */
    if (pipe(channel))
        return verb_error(call, EXIT_UNWELL, "no pipe: %s", strerror(errno));
    (void)fflush(NULL);
    const pid_t maker = fork();
    if (maker == 0) {
        fcc_context *context;
        if (fcc_connect(&connect, &context) || fcc_get_unique_id(context, &id))
            _exit(verb_error(call, EXIT_UNREACHABLE, "%s", fcc_last_error()));
        _exit(write(channel[1], &id, sizeof(id)) == (ssize_t)sizeof(id) ? EXIT_WELL : EXIT_UNWELL);
    }
    (void)close(channel[1]);
    const bool made = maker > 0 && read(channel[0], &id, sizeof(id)) == (ssize_t)sizeof(id);
    (void)close(channel[0]);
    if (maker > 0)
        (void)waitpid(maker, NULL, 0);
    if (!made)
        return EXIT_UNREACHABLE;
    for (; n < o->ranks; n++) {
        pids[n] = fork();
        if (pids[n] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(getppid() == parent ? rank_run(call, o, f, socket, &id, n) : EXIT_UNWELL);
        }
        if (pids[n] < 0) {
            code = verb_error(call, EXIT_UNWELL, "no new process: %s", strerror(errno));
            break;
        }
    }
    for (int r = 0, how; r < n; r++) {
        if (code)
            (void)kill(pids[r], SIGKILL); /* all ranks have not been started */
        if (waitpid(pids[r], &how, 0) == pids[r] && how && !code)
            code = WIFEXITED(how) ? WEXITSTATUS(how)
                                  : verb_error(call, EXIT_UNWELL, "rank %d: killed by signal %d", r, WTERMSIG(how));
    }
    return code;
}

static int file_tune(struct call *call, const struct tune_options *o, const struct tuned_file *f)
{
    struct local_options local = {.devices = o->device       ? 1
                                             : o->ranks < 64 ? (int)o->ranks
                                                             : 64,
                                  .gpus = device_gpus[o->device]};
    struct local_daemon daemon;
    struct error e = {0};

    if (!o->local)
        return ranks_run(call, o, f, call->socket);
    if (local_daemon_start(&local, &daemon, &e))
        return verb_error(call, EXIT_UNREACHABLE, "--local: %s", e.text);
    int code = ranks_run(call, o, f, daemon.socket);
    if (local_daemon_stop(&daemon, &e))
        code = verb_error(call, code ? code : EXIT_UNWELL, "--local: %s", e.text);
    return code;
}

int verb_tune(struct call *call)
{
    struct tune_options o = {.ranks = 2, .limit_s = 20};
    struct tuned_file f = {.nsizes = 0};
    struct program_size sizes[PROGRAM_SIZES_MAX];
    const struct arg args[] = {
        {NULL, 'D', ARG_TEXT, &o.sizes, 0, 0, NULL, "N=SIZE,...",
         "sizes of the program, where others are wanted than in the text"},
        {"ranks", 0, ARG_INT, &o.ranks, 1, FCC_MAX_RANKS, NULL, "N", "ranks, each a process [2]"},
        {"device", 0, ARG_CHOICE, &o.device, 0, 0, device_names, "KIND",
         "what the ranks use: cpu, gpu (any), cuda or hip [cpu]"},
        {"local", 0, ARG_FLAG, &o.local, 0, 0, NULL, NULL,
         "start a private fccd, with a cpu device for each rank or with GPUs, and end it"},
        {"again", 0, ARG_FLAG, &o.again, 0, 0, NULL, NULL, "tune, whatever the cache has"},
        {"limit", 0, ARG_INT, &o.limit_s, 1, 3600, NULL, "SECONDS", "no schedule is begun after that [20]"},
        {"cache", 0, ARG_TEXT, &o.cache, 0, 0, NULL, "DIRECTORY", "the cache [fccd-tuned in the user's directory for caches]"},
    };

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 1))
        return call->exit;
    if (call->noperands != 1)
        return verb_error(call, EXIT_USAGE, "needed is the name of a program's file");
    char *given = strdup(o.sizes ? o.sizes : ""), *text = NULL;
    if (!given)
        return verb_error(call, EXIT_UNWELL, "out of memory");
    if (!o.sizes || program_sizes_parse(call, given, sizes, &f.nsizes))
        f.text = text = program_file_read(call, call->operands[0], &f.length);
    for (size_t i = 0; i < f.nsizes; i++)
        f.sizes[i] = (struct fcc_program_size){sizes[i].name, sizes[i].value};
    if (text)
        call->exit = file_tune(call, &o, &f);
    free(text);
    free(given);
    return call->exit;
}
