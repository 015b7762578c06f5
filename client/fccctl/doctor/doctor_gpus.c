/* SPDX-License-Identifier: MIT
 *
 * doctor_gpus.c - checks the GPUs: are they served, may the caller's jobs open them, do they reach each other?
 */
#include <errno.h>
#include <glob.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/fccctl/doctor/doctor.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"

/* A kind of GPU: the files that its runtime opens, and remedies. */
struct maker {
    const char *kind;
    const char *there;    /* if this file exists, the kernel has a driver for such GPUs */
    const char *files[4]; /* patterns of files that must exist and that the user must be able to open */
    const char *missing;  /* remedy if a file is missing */
    const char *unwell;   /* remedy if the plug-in finds no GPU */
    const char *build;    /* remedy if there is no plug-in */
};

static const struct maker makers[] = {
    {.kind = "cuda",
     .there = "/dev/nvidiactl",
     .files = {"/dev/nvidiactl", "/dev/nvidia[0-9]*", "/dev/nvidia-uvm"},
     .missing = "as root: 'nvidia-modprobe -u -c 0' (or start nvidia-persistenced); then restart fccd",
     .unwell = "does 'nvidia-smi' list the GPUs? is libcuda.so.1 of the same driver installed? then restart fccd",
     .build = "build and install fccd on a machine with nvcc: 'make' says what it leaves out"},
    {.kind = "hip",
     .there = "/dev/kfd",
     .files = {"/dev/kfd", "/dev/dri/renderD*"},
     .missing = "load the driver, as root: 'modprobe amdgpu'; then restart fccd",
     .unwell = "does 'rocminfo' list the GPUs? are the ROCm libraries installed? then restart fccd",
     .build = "build and install fccd on a machine with hipcc: 'make' says what it leaves out"},
};
#define MAKERS (sizeof(makers) / sizeof(makers[0]))

static struct json_object *plugin_of(const struct doctor *d, const char *kind)
{
    for (size_t i = 0; i < field_count(d->devices, "plugins"); i++) {
        struct json_object *p = field_at(d->devices, "plugins", i);
        if (strcmp(field_text(p, "kind"), kind) == 0)
            return p;
    }
    return NULL;
}

/* ---- device files ---- */

/* Checks that the caller may open a file: workers, which run as the job's user, will open it. */
static void check_file(struct doctor *d, const char *kind, enum finding_level level, const char *path)
{
    const struct passwd *user = getpwuid(getuid());
    const struct group *group;
    struct stat st;
    struct words remedy;
    int why = access(path, R_OK | W_OK) ? errno : 0;

    if (!why || stat(path, &st) != 0)
        return;
    group = getgrgid(st.st_gid);
    if (st.st_gid != 0 && (st.st_mode & 0060) == 0060)
        remedy = words("as root: 'usermod -aG %s %s', then log in again", group ? group->gr_name : "GROUP",
                       user ? user->pw_name : "USER");
    else
        remedy = words("as root: 'chmod 0666 %s', or let udev give it to a group that you are in", path);
    finding_add(d, level, kind, remedy.text, "%s: you may not open it (%s, group %s, mode %04o), so your jobs' workers may not",
                path, strerror(why), group_name(group, st.st_gid).text, (unsigned)st.st_mode & 07777u);
}

static void check_files(struct doctor *d, const struct maker *m)
{
    const char *state = field_text(plugin_of(d, m->kind), "state");
    struct words missing = {""};

    if (strcmp(state, "off") == 0 || strcmp(state, "not built") == 0)
        return; /* the files are not used */
    for (size_t i = 0; i < sizeof(m->files) / sizeof(m->files[0]) && m->files[i]; i++) {
        glob_t found;
        int status = glob(m->files[i], 0, NULL, &found);
        if (status == GLOB_NOMATCH)
            words_add(&missing, "%s%s", *missing.text ? ", " : "", m->files[i]);
        for (size_t f = 0; status == 0 && f < found.gl_pathc; f++)
            check_file(d, m->kind, strchr(m->files[i], '*') ? FINDING_WARN : FINDING_BAD, found.gl_pathv[f]);
        if (status == 0)
            globfree(&found);
    }
    if (*missing.text && strcmp(state, "ok") != 0)
        finding_add(d, FINDING_BAD, m->kind, m->missing, "missing device files, which its runtime needs: %s", missing.text);
}

/* ---- plug-ins ---- */

/* The kernel has a driver for these GPUs. Checks whether the plug-in serves them. */
static void check_plugin(struct doctor *d, const struct maker *m)
{
    struct json_object *plugin = plugin_of(d, m->kind);
    const char *state = field_text(plugin, "state"), *status = field_text(plugin, "status");

    if (!d->devices)
        return; /* the daemon does not answer: check_reachable() reports that */
    if (!plugin)
        finding_add(d, FINDING_WARN, m->kind, "restart fccd after an upgrade", "%s is there, and this fccd serves no GPUs",
                    m->there);
    else if (strcmp(state, "ok") == 0)
        finding_add(d, strstr(status, "left out") ? FINDING_WARN : FINDING_OK, m->kind, "", "%s", status);
    else if (strcmp(state, "off") == 0)
        finding_add(d, FINDING_OK, m->kind, "", "%s is there and %s", m->there, status);
    else if (strcmp(state, "not built") == 0)
        finding_add(d, FINDING_WARN, m->kind, m->build, "%s is there and is not used: %s", m->there, status);
    else
        finding_add(d, FINDING_BAD, m->kind, m->unwell, "%s is there and no GPU is served: %s", m->there, status);
}

/* ---- peers ---- */

static bool is_peer(struct json_object *device, int64_t of)
{
    for (size_t i = 0; i < field_count(device, "peers"); i++)
        if (json_object_get_int64(field_at(device, "peers", i)) == of)
            return true;
    return false;
}

static void check_peers(struct doctor *d, const char *kind)
{
    struct words pairs = {""};
    size_t ngpus = 0, n = field_count(d->devices, "devices");

    for (size_t i = 0; i < n; i++) {
        struct json_object *a = field_at(d->devices, "devices", i);
        if (strcmp(field_text(a, "kind"), kind) != 0)
            continue;
        ngpus++;
        for (size_t k = 0; k < n; k++) {
            struct json_object *b = field_at(d->devices, "devices", k);
            int64_t from = field_int(a, "device", -1), to = field_int(b, "device", -1);
            if (strcmp(field_text(b, "kind"), kind) == 0 && k != i && !is_peer(a, to))
                words_add(&pairs, "%s%" PRId64 " to %" PRId64, *pairs.text ? ", " : "", from, to);
        }
    }
    if (*pairs.text)
        finding_add(
            d, FINDING_WARN, kind,
            "keep a communicator's ranks on GPUs that reach each other ('fccctl devices'); look for an IOMMU or PCIe access "
            "control (ACS) that keeps them apart",
            "GPUs that cannot address another's memory: %s", pairs.text);
    else if (ngpus > 1)
        finding_add(d, FINDING_OK, kind, "", "all %zu GPUs reach each other's memory", ngpus);
}

void doctor_gpus(struct doctor *d)
{
    bool any = false;

    for (size_t i = 0; i < MAKERS; i++) {
        if (access(makers[i].there, F_OK) != 0 && strcmp(field_text(plugin_of(d, makers[i].kind), "state"), "ok") != 0)
            continue;
        any = true;
        check_files(d, &makers[i]);
        check_plugin(d, &makers[i]);
        check_peers(d, makers[i].kind);
    }
    if (!any)
        finding_add(d, FINDING_OK, "gpus", "", "this machine has none; operators run on the cpu device");
}
