/* SPDX-License-Identifier: MIT
 *
 * doctor.c - the verb doctor: reports what is wrong on this machine, and how to fix it.
 */
#include "client/fccctl/doctor/doctor.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"
#include "proto/base/fd.h"

static const char *const level_names[] = {[FINDING_OK] = "ok", [FINDING_WARN] = "warn", [FINDING_BAD] = "bad"};

ssize_t file_read(const char *path, char *out, size_t room)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    ssize_t n = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, out, room - 1) : -1;

    fd_close(&fd);
    out[n > 0 ? n : 0] = '\0';
    return n;
}

struct words group_name(const struct group *group, gid_t gid)
{
    return group ? words("%s", group->gr_name) : words("%u", (unsigned)gid);
}

void finding_add(struct doctor *d, enum finding_level level, const char *check, const char *remedy, const char *format, ...)
{
    struct json_object *o = json_object_new_object();
    char text[1024];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    JSON_ADD(o, {"check", json_text(check)}, {"level", json_text(level_names[level])},
             {"finding", json_text(text_clean(text))});
    if (*remedy)
        JSON_ADD(o, {"remedy", json_text(remedy)});
    (void)json_object_array_add(d->findings, o);
    d->count[level]++;
}

static void findings_print(const struct doctor *d)
{
    for (size_t i = 0; i < json_object_array_length(d->findings); i++) {
        struct json_object *o = json_object_array_get_idx(d->findings, i);
        printf("%-4s  %-12s  %s\n", field_text(o, "level"), field_text(o, "check"), field_text(o, "finding"));
        if (*field_text(o, "remedy"))
            printf("      %-12s  -> %s\n", "", field_text(o, "remedy"));
    }
    printf("%d bad, %d to look at, %d ok\n", d->count[FINDING_BAD], d->count[FINDING_WARN], d->count[FINDING_OK]);
}

static void findings_make(struct doctor *d)
{
    d->findings = json_object_new_array();
    doctor_daemon(d);
    doctor_nodes(d);
    doctor_machine(d);
    doctor_gpus(d);
    doctor_mps(d);
    doctor_jobs(d);
}

/* The findings as JSON, of which the doctor is rid. */
static struct json_object *findings_take(struct doctor *d)
{
    struct json_object *o =
        JSON_OBJECT({"well", json_object_new_boolean(d->count[FINDING_BAD] == 0)}, {"findings", d->findings});

    (void)json_object_put(d->status);
    (void)json_object_put(d->devices);
    return o;
}

struct json_object *doctor_collect(const char *socket)
{
    struct doctor d = {.socket = socket};

    findings_make(&d);
    return findings_take(&d);
}

int verb_doctor(struct call *call)
{
    struct doctor d = {.socket = call->socket};

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    d.socket = call->socket;
    findings_make(&d);
    if (!call->json)
        findings_print(&d);
    struct json_object *o = findings_take(&d);
    if (call->json)
        json_print(o, true);
    (void)json_object_put(o);
    return d.count[FINDING_BAD] ? EXIT_UNWELL : EXIT_WELL;
}
