/* SPDX-License-Identifier: MIT
 *
 * report.c - the verb report: what a maintainer needs to know of this node, in one file, without secrets: versions, configuration, the doctor's
 * findings, devices, nodes, jobs, the last operators, metrics, and the end of the log.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "client/fccctl/control.h"
#include "client/fccctl/doctor/doctor.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/file_write.h"
#include "client/fccctl/flight/flight.h"
#include "client/fccctl/secrets.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/fd.h"
#include "proto/version.h"

#define LOG_BYTES (64 << 10)
#define OPERATORS 50 /* of each communicator */

/* ---- sections ---- */

static struct json_object *versions(void)
{
    struct utsname machine;
    char now[64] = "";
    time_t t = time(NULL);
    struct tm utc;

    (void)strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &utc));
    (void)uname(&machine);
    return JSON_OBJECT({"time", json_text(now)}, {"fccctl", json_text(VERSION_TEXT)}, {"library", json_text(fcc_version())},
                       {"protocol", json_int(FCC_PROTO_VERSION)}, {"kernel", json_text(machine.release)},
                       {"kernel_version", json_text(machine.version)}, {"machine", json_text(machine.machine)},
                       {"processors", json_int(sysconf(_SC_NPROCESSORS_ONLN))},
                       {"memory_bytes", json_int((int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE))},
                       {"uid", json_int(getuid())});
}

/* The variables of this process's environment that fccd's programs read. Their values are settings and places. */
static struct json_object *environment(void)
{
    static const char *const begins[] = {"FCC_", "FCCD_", "CUDA_", "HIP_", "ROCR_", "OPENBLAS_", "OMP_"};
    struct json_object *o = json_object_new_object();
    extern char **environ;

    for (char **v = environ; v && *v; v++)
        for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
            const char *equals = strchr(*v, '=');
            if (!equals || strncmp(*v, begins[i], strlen(begins[i])) != 0)
                continue;
            struct words name = words("%.*s", (int)(equals - *v), *v);
            JSON_ADD(o, {name.text, json_text(equals + 1)});
        }
    return o;
}

/* An answer, or why there is none. */
static struct json_object *answer_of(int status, struct json_object *answer, const struct error *e)
{
    return status ? JSON_OBJECT({"error", json_text(e->text)}) : answer;
}

static struct json_object *broker_answer(const char *socket, enum fcc_query_kind what)
{
    struct json_object *answer = NULL;
    struct error e = {0};
    int status = control_ask_broker(socket, what, &answer, &e);

    return answer_of(status, answer, &e);
}

static struct json_object *workers_answer(const char *socket, enum fcc_query_kind what)
{
    struct json_object *answer = NULL;
    struct error e = {0};
    int status = what == FCC_QUERY_COMMS ? comms_collect(socket, -1, NULL, COMMS_STUCK_AFTER_S, &answer, &e)
                                         : workers_collect(socket, what, -1, NULL, &answer, &e);

    return answer_of(status, answer, &e);
}

/* The last operators of every recorder that the caller may see. */
static struct json_object *flights(const char *socket)
{
    struct json_object *list = json_object_new_array(), *all = broker_answer(socket, FCC_QUERY_FLIGHTS);

    for (size_t i = 0; i < field_count(all, "flights"); i++) {
        struct json_object *about = field_at(all, "flights", i), *o;
        struct flight *f;
        struct error e;
        if (control_ask_flight(socket, (uint32_t)field_int(about, "flight", 0), &f, &e)) {
            o = JSON_OBJECT({"error", json_text(e.text)});
        } else {
            o = flight_parse(f, 0, OPERATORS, clock_ns());
            free(f);
        }
        JSON_ADD(o, {"about", json_object_get(about)});
        (void)json_object_array_add(list, o);
    }
    (void)json_object_put(all);
    return list;
}

/* The last bytes of a stream or file, as lines. */
static struct json_object *lines_of(char *text)
{
    struct json_object *list = json_object_new_array();
    char *rest = text, *line;

    while ((line = strsep(&rest, "\n")))
        if (*line)
            (void)json_object_array_add(list, json_text(text_clean(line)));
    return list;
}

/* The end of LOG_FILE, or of what the journal has of fccd. */
static struct json_object *log_end(const char *path)
{
    static char text[LOG_BYTES + 1];
    struct json_object *o;
    struct stat st;
    ssize_t n = -1;

    if (*path == '/') {
        int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        bool is_file = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode);
        if (is_file)
            n = pread(fd, text, LOG_BYTES, st.st_size > LOG_BYTES ? st.st_size - LOG_BYTES : 0);
        const char *why = fd >= 0 && !is_file ? "it is no regular file: what it was sent is not here" : strerror(errno);
        fd_close(&fd);
        if (n < 0)
            return JSON_OBJECT({"file", json_text(path)}, {"error", json_text(why)});
    } else {
        FILE *journal = popen("journalctl --unit=fccd --lines=300 --no-pager --output=short-iso-precise 2>/dev/null", "re");
        n = journal ? (ssize_t)fread(text, 1, LOG_BYTES, journal) : 0;
        if (journal)
            (void)pclose(journal);
    }
    text[n] = '\0';
    o = lines_of(text);
    return JSON_OBJECT({"file", json_text(*path ? path : "the journal")}, {"lines", o});
}

static struct json_object *report_make(const char *socket, bool *reachable)
{
    struct json_object *config = broker_answer(socket, FCC_QUERY_CONFIG), *whole, *clean;
    struct secrets secrets;

    *reachable = !*field_text(config, "error");
    whole =
        JSON_OBJECT({"versions", versions()}, {"environment", environment()}, {"config", json_object_get(config)},
                    {"status", broker_answer(socket, FCC_QUERY_STATUS)}, {"doctor", doctor_collect(socket)},
                    {"devices", broker_answer(socket, FCC_QUERY_DEVICES)}, {"nodes", broker_answer(socket, FCC_QUERY_NODES)},
                    {"comms", workers_answer(socket, FCC_QUERY_COMMS)}, {"links", workers_answer(socket, FCC_QUERY_NODES)},
                    {"flights", flights(socket)}, {"metrics", broker_answer(socket, FCC_QUERY_METRICS)},
                    {"log", log_end(field_text(config, "LOG_FILE"))});
    secrets_read(&secrets, field_text(config, "CLUSTER_KEY"));
    clean = secrets_remove(&secrets, whole);
    secrets_forget(&secrets);
    (void)json_object_put(whole);
    (void)json_object_put(config);
    return clean;
}

/* ---- the verb ---- */

static int report_print(struct json_object *report, FILE *out)
{
    (void)fprintf(out, "%s\n",
                  json_object_to_json_string_ext(report, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE));
    return 0;
}

int verb_report(struct call *call)
{
    struct error e;
    bool reachable;

    if (!args_parse(call, NULL, 0, 1))
        return call->exit;
    if (!call->noperands && !call->json)
        return verb_error(call, EXIT_USAGE,
                          "FILE: none was given: the report is written there, or with --json to standard output");
    (void)umask(077); /* of other users it has names */
    struct json_object *report = report_make(call->socket, &reachable);
    int code = reachable ? EXIT_WELL : EXIT_UNREACHABLE;
    if (!call->noperands)
        (void)report_print(report, stdout);
    else if (file_write(call->operands[0], report, report_print, &e))
        code = verb_error(call, EXIT_UNWELL, "%s", e.text);
    else if (!call->json)
        printf(
            "%s: %s. Keys are removed, but it has names of users, jobs, nodes and files: look it through before you send it.\n",
            call->operands[0], reachable ? "the report is written" : "fccd is not reachable, and the report has the rest");
    (void)json_object_put(report);
    return code;
}
