/* SPDX-License-Identifier: MIT */
#include "daemon/common/config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/common/cluster.h"
#include "daemon/common/loopback.h"
#include "daemon/common/text_file.h"
#include "proto/base/cgroup.h"
#include "proto/base/json_fd.h"
#include "proto/base/log.h"
#include "proto/variables.h"

#ifndef SYSCONFDIR
#define SYSCONFDIR "/etc"
#endif
#define CONFIG_FILE_DEFAULT SYSCONFDIR "/fccd/fccd.conf" /* the build sets SYSCONFDIR */
#define LINE_MAX_BYTES 8190                              /* a line of the file: the longest value and its key */

struct key {
    const char *name, *what, *unit, *standard;
    size_t offset, bytes; /* bytes: room of a string; 0: the value is a number */
    uint64_t smallest, largest;
};

static const struct key keys[] = {
#define X(KEY, field, unit, standard, smallest, largest, what)                                                                 \
    {#KEY, what, unit, #standard, offsetof(struct config, field), 0, smallest, largest},
    CONFIG_NUMBERS(X)
#undef X
#define X(KEY, field, bytes, standard, what) {#KEY, what, "", standard, offsetof(struct config, field), bytes, 0, 0},
        CONFIG_STRINGS(X)
#undef X
};
#define KEYS (sizeof(keys) / sizeof(keys[0]))

static const struct key *key_by_name(const char *name)
{
    for (size_t i = 0; i < KEYS; i++)
        if (!strcmp(keys[i].name, name))
            return &keys[i];
    return NULL;
}

/* Options that are not settings. */
static const char *const actions[] = {[CONFIG_BACKGROUND] = "BACKGROUND",
                                      [CONFIG_CHECK] = "CHECK_CONFIG",
                                      [CONFIG_LIST_GPUS] = "LIST_GPUS",
                                      [CONFIG_HELP] = "HELP",
                                      [CONFIG_VERSION] = "VERSION"};
#define ACTIONS (sizeof(actions) / sizeof(actions[0]))

/* " (did you mean KEY?)" for an unknown key, or " (did you mean --key?)". */
struct guess {
    char text[96];
};

/* Turns the forms of the command line and the environment into a key's name: "--cpu-devices", "FCCD_CPU_DEVICES" become
 * CPU_DEVICES. */
static void name_plain(const char *name, size_t length, char *plain, size_t room)
{
    size_t n = 0;

    for (; length && (*name == '-' || *name == '_'); length--)
        name++;
    for (; n < length && n + 1 < room; n++)
        plain[n] = (char)(name[n] == '-' ? '_' : toupper((unsigned char)name[n]));
    plain[n] = '\0';
    if (!strncmp(plain, "FCCD_", 5))
        memmove(plain, plain + 5, n - 4);
}

/* An option's name: "--cpu-devices" for CPU_DEVICES. */
struct option {
    char text[64];
};

static struct option option_of(const char *name)
{
    struct option option;

    (void)snprintf(option.text, sizeof(option.text), "--%s", name);
    for (char *p = option.text; *p; p++)
        *p = (char)(*p == '_' ? '-' : tolower((unsigned char)*p));
    return option;
}

static struct guess name_guess(const char *name, size_t length, bool is_option)
{
    const char *names[KEYS + ACTIONS];
    char plain[64];
    struct guess guess = {""};
    size_t n = 0;

    name_plain(name, length, plain, sizeof(plain));
    if (!*plain)
        return guess;
    for (size_t i = 0; i < KEYS; i++)
        names[n++] = keys[i].name;
    for (size_t i = CONFIG_BACKGROUND; i < ACTIONS && is_option; i++)
        names[n++] = actions[i];
    if (is_option)
        names[n++] = "CONFIG";
    const char *nearest = name_nearest(plain, names, n);
    (void)snprintf(guess.text, sizeof(guess.text), " (did you mean %s?)", is_option ? option_of(nearest).text : nearest);
    return guess;
}

static int number_set(struct config *c, const struct key *k, const char *value, const char *where, struct error *e)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (errno || !isdigit((unsigned char)value[0]) || *end || n < k->smallest || n > k->largest)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed is a number from %llu to %llu%s%s", where, k->name, value,
                         (unsigned long long)k->smallest, (unsigned long long)k->largest, *k->unit ? " " : "", k->unit);
    uint32_t v = (uint32_t)n;
    memcpy((char *)c + k->offset, &v, sizeof(v));
    return 0;
}

static bool is_optional_path(const struct config *c, const char *field)
{
    return field == c->cluster_key || field == c->plugin_dir || field == c->code_cache || field == c->log_file ||
           field == c->pid_file || field == c->hold_file;
}

#define WEIGHT_STANDARD 100
#define WEIGHT_MOST 10000
#define WEIGHTS_ALLOWED "a list UID=WEIGHT,... with weights from 1 to 10000, each user once"
#define NICE_STEP 1.25 /* how much less a thread weighs whose nice value is one more: sched(7) */
#define NICE_MOST 19

/* Reads UID=WEIGHT from *text and the comma behind it. False: something else is there. */
static bool weight_read(const char **text, uint32_t *uid, uint32_t *weight)
{
    char *end;
    unsigned long long n = isdigit((unsigned char)**text) ? strtoull(*text, &end, 10) : UINT64_MAX;

    if (n >= UINT32_MAX || *end != '=' || !isdigit((unsigned char)end[1]))
        return false;
    *uid = (uint32_t)n;
    n = strtoull(end + 1, &end, 10);
    if (n < 1 || n > WEIGHT_MOST || (*end && (*end != ',' || !end[1])))
        return false;
    *weight = (uint32_t)n;
    *text = *end ? end + 1 : end;
    return true;
}

/* The weight of a user, and *most, the largest of all, in a list that weights_are_right(). */
static uint32_t weight_of(const char *weights, uint32_t uid, uint32_t *most)
{
    uint32_t found = WEIGHT_STANDARD, other, weight;

    *most = WEIGHT_STANDARD;
    while (*weights && weight_read(&weights, &other, &weight)) {
        *most = weight > *most ? weight : *most;
        found = other == uid ? weight : found;
    }
    return found;
}

static bool weights_are_right(const char *weights)
{
    uint32_t uid, weight;

    while (*weights) {
        if (!weight_read(&weights, &uid, &weight))
            return false;
        const char *rest = weights;
        for (uint32_t again; *rest;)
            if (!weight_read(&rest, &again, &weight) || again == uid)
                return false;
    }
    return true;
}

uint32_t config_weight(const struct config *config, uint32_t uid)
{
    uint32_t most;

    return weight_of(config->user_weights, uid, &most);
}

int config_nice(const struct config *config, uint32_t uid)
{
    uint32_t most, weight = weight_of(config->user_weights, uid, &most);
    double ratio = (double)most / weight;
    int nice = 0;

    for (; nice < NICE_MOST && ratio > NICE_STEP / 1.118; nice++) /* to the nearest: 1.118 is the root of the step */
        ratio /= NICE_STEP;
    return nice;
}

static int string_set(struct config *c, const struct key *k, const char *value, const char *where, struct error *e)
{
    char *field = (char *)c + k->offset;

    if (strlen(value) >= k->bytes)
        return error_set(e, -EINVAL, "%s: %s: \"%.120s%s\": allowed are at most %zu characters", where, k->name, value,
                         strlen(value) > 120 ? "..." : "", k->bytes - 1);
    if ((field == c->node_listen || field == c->node_address) && *value && address_split(value, NULL, NULL))
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed is " ADDRESS_ALLOWED ", or nothing", where, k->name, value);
    if (field == c->metrics_listen && *value && value[0] != '/' &&
        loopback_parse(value, &(struct sockaddr_storage){0}, &(uint32_t){0}))
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed is an absolute path, " LOOPBACK_ALLOWED ", or nothing", where,
                         k->name, value);
    if (is_optional_path(c, field) && *value && value[0] != '/')
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed is an absolute path, or nothing", where, k->name, value);
    if (field == c->log_level && log_level_by_name(value) < 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are error, warning, info and debug", where, k->name, value);
    if (field == c->log_format && log_format_by_name(value) < 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are text and json", where, k->name, value);
    if (field == c->seccomp && strcmp(value, "on") != 0 && strcmp(value, "log") != 0 && strcmp(value, "off") != 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are on, log and off", where, k->name, value);
    if (field == c->socket && value[0] != '/')
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed is an absolute path", where, k->name, value);
    if (field == c->user_weights && !weights_are_right(value))
        return error_set(e, -EINVAL, "%s: %s: \"%.120s%s\": allowed is " WEIGHTS_ALLOWED, where, k->name, value,
                         strlen(value) > 120 ? "..." : "");
    if (field == c->gpus && strcmp(value, "auto") != 0 && strcmp(value, "none") != 0 && strcmp(value, "cuda") != 0 &&
        strcmp(value, "hip") != 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are auto, none, cuda and hip", where, k->name, value);
    if (field == c->transport && strcmp(value, "auto") != 0 && strcmp(value, "tcp") != 0 && strcmp(value, "verbs") != 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are auto, tcp and verbs", where, k->name, value);
    if (field == c->rails && strcmp(value, "auto") != 0 && (strlen(value) != 1 || value[0] < '1' || value[0] > '8'))
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are auto and a number from 1 to 8", where, k->name, value);
    if (field == c->rail_networks && networks_parse(value, (struct network[NETWORKS_MAX]){{0}}) < 0)
        return error_set(e, -EINVAL, "%s: %s: \"%.120s%s\": allowed are " NETWORKS_ALLOWED, where, k->name, value,
                         strlen(value) > 120 ? "..." : "");
    if (field == c->gpu_sharing && strcmp(value, "auto") != 0 && strcmp(value, "ipc") != 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are auto and ipc", where, k->name, value);
    if (field == c->gpu_compiler && strcmp(value, "auto") != 0 && strcmp(value, "none") != 0 && value[0] != '/')
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are auto, none and a path from / on", where, k->name, value);
    if (field == c->gpu_begin && strcmp(value, "alone") != 0 && strcmp(value, "together") != 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are alone and together", where, k->name, value);
    if (field == c->gpu_turns && strcmp(value, "weighted") != 0 && strcmp(value, "free") != 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are weighted and free", where, k->name, value);
    if (field == c->gpu_bind && strcmp(value, "own") != 0 && strcmp(value, "shared") != 0)
        return error_set(e, -EINVAL, "%s: %s: \"%s\": allowed are own and shared", where, k->name, value);
    (void)snprintf(field, k->bytes, "%s", value);
    return 0;
}

static int key_set(struct config *c, const struct key *k, const char *value, const char *where, struct error *e)
{
    return k->bytes ? string_set(c, k, value, where, e) : number_set(c, k, value, where, e);
}

/* Parses one line of the file. */
static int line_take(void *config, char *line, const char *where, struct error *e)
{
    char *s = text_trim(line), *equals = strchr(s, '=');

    if (!*s || *s == '#')
        return 0;
    if (!equals)
        return error_set(e, -EINVAL, "%s: \"%.200s\": allowed are lines KEY=VALUE, comments (#) and empty lines", where, s);
    *equals = '\0';
    const char *name = text_trim(s);
    const struct key *k = key_by_name(name);
    if (!k)
        return error_set(e, -EINVAL, "%s: unknown key \"%.200s\"%s; fccd --help lists the keys", where, name,
                         name_guess(name, strlen(name), false).text);
    return key_set(config, k, text_trim(equals + 1), where, e);
}

/* Reads the file at `path`; NULL: the default file, which may be missing. A relative path is resolved against the directory in
 * which the program was started, also when a background daemon, whose directory is another one, reads the file again. */
static int file_read(struct config *c, const char *path, struct error *e)
{
    static char started_in[PATH_MAX]; /* set at the first reading; only main()'s thread reads configurations */
    char whole[2 * PATH_MAX];
    const char *name = path ? path : CONFIG_FILE_DEFAULT;

    if (!*started_in) {
        if (!getcwd(started_in, sizeof(started_in)))
            (void)snprintf(started_in, sizeof(started_in), "."); /* the directory was removed */
    } else if (*name != '/' && *name && snprintf(whole, sizeof(whole), "%s/%s", started_in, name) < (int)sizeof(whole)) {
        name = whole;
    }
    const struct text_file file = {.path = name, .longest = LINE_MAX_BYTES, .may_be_gone = !path, .take = line_take, .arg = c};

    return text_file_read(&file, e);
}

static int environment_read(struct config *c, struct error *e)
{
    for (size_t i = 0; i < KEYS; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "FCCD_%s", keys[i].name);
        const char *value = getenv(name);
        int status = value ? key_set(c, &keys[i], value, name, e) : 0;
        if (status)
            return status;
    }
    return 0;
}

static const struct key *key_by_option(const char *option, size_t length)
{
    for (size_t i = 0; i < KEYS; i++)
        if (!strncmp(option_of(keys[i].name).text, option, length) && !option_of(keys[i].name).text[length])
            return &keys[i];
    return NULL;
}

/* Reads one option with its value, "--key=value" or "--key value". Sets *used to the number of arguments that it took. */
static int option_read(struct config *c, char *argv[], int *used, const char **file, struct error *e)
{
    char where[128];
    const char *arg = argv[0], *equals = strchr(arg, '=');
    size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
    const char *value = equals ? equals + 1 : argv[1];
    bool is_file = length == strlen("--config") && !strncmp(arg, "--config", length);
    bool is_option = !strncmp(arg, "--", 2);
    const struct key *k = key_by_option(arg, length);

    if (!k && !is_file)
        return error_set(e, -EINVAL, "%.200s: unknown argument%s; fccd --help lists what there is", arg,
                         name_guess(arg, is_option ? length : 0, true).text);
    if (!value)
        return error_set(e, -EINVAL, "%s: the value is missing", arg);
    *used = equals ? 1 : 2;
    if (is_file) {
        *file = value;
        return 0;
    }
    (void)snprintf(where, sizeof(where), "%.*s", (int)length, arg);
    return key_set(c, k, value, where, e);
}

static void defaults_set(struct config *c)
{
    memset(c, 0, sizeof(*c));
    for (size_t i = 0; i < KEYS; i++)
        (void)key_set(c, &keys[i], keys[i].standard, "the default", NULL);
}

/* If the argument is an action, sets *action; the last one counts. */
static bool action_read(const char *arg, enum config_action *action)
{
    for (size_t i = CONFIG_BACKGROUND; i < ACTIONS; i++)
        if (!strcmp(arg, option_of(actions[i]).text)) {
            *action = (enum config_action)i;
            return true;
        }
    return false;
}

/* Reads the whole command line into *c. Sets *file if --config names one. */
static int arguments_read(int argc, char *argv[], struct config *c, const char **file, enum config_action *action,
                          struct error *e)
{
    int used, status = 0;

    for (int i = 1; !status && i < argc; i += used) {
        used = 1;
        if (!action_read(argv[i], action))
            status = option_read(c, argv + i, &used, file, e);
    }
    return status;
}

/* Sets an empty path to a file beside the socket: for "/run/fccd/fccd.sock" and ".pid" it is "/run/fccd/fccd.pid". */
static int path_beside(const struct config *c, char *path, size_t room, const char *key, const char *ending, struct error *e)
{
    const char *slash = strrchr(c->socket, '/'), *dot = strrchr(c->socket, '.');
    int stem = (int)(dot && dot > slash + 1 ? dot - c->socket : (long)strlen(c->socket));

    if (*path)
        return 0;
    if (snprintf(path, room, "%.*s%s", stem, c->socket, ending) >= (int)room)
        return error_set(e, -EINVAL, "%s: beside SOCKET=%s its path is too long: name a file", key, c->socket);
    return 0;
}

/* Under systemd the service has a directory for caches (CacheDirectory=), as it may not write to home directories. */
static void code_cache_find(struct config *c)
{
    const char *directory = getenv("CACHE_DIRECTORY");

    if (!*c->code_cache && directory && *directory == '/' && strlen(directory) < sizeof(c->code_cache))
        text_copy(c->code_cache, sizeof(c->code_cache), directory);
}

int config_load(int argc, char *argv[], struct config *out, enum config_action *action, struct error *e)
{
    struct config c, ignored;
    const char *file = NULL;
    enum config_action todo = CONFIG_RUN;
    int status;

    /* The command line is read twice: first for the file's name and for mistakes, and last because it overrides the rest. */
    defaults_set(&c);
    defaults_set(&ignored);
    status = arguments_read(argc, argv, &ignored, &file, &todo, e);
    if (!status)
        status = file_read(&c, file, e);
    if (!status)
        status = environment_read(&c, e);
    if (!status)
        status = arguments_read(argc, argv, &c, &file, &todo, e);
    if (!status && (todo == CONFIG_RUN || todo == CONFIG_BACKGROUND || todo == CONFIG_CHECK))
        status = cluster_check(&c, e);
    if (!status && todo == CONFIG_BACKGROUND &&
        !(status = path_beside(&c, c.pid_file, sizeof(c.pid_file), "PID_FILE", ".pid", e)))
        status = path_beside(&c, c.log_file, sizeof(c.log_file), "LOG_FILE", ".log", e);
    if (status)
        return status;
    code_cache_find(&c);
    *out = c;
    *action = todo;
    return 0;
}

/* Can a running daemon change this setting? Such settings are read at each use by the broker, and sent to workers when they
 * start. */
static bool can_change(const struct key *k)
{
    const char *name = k->name;

    if (!k->bytes)
        return strcmp(name, "CPU_DEVICES") != 0;
    return !strcmp(name, "GPU_BEGIN") || !strcmp(name, "USER_WEIGHTS") || !strcmp(name, "GPU_TURNS") ||
           !strcmp(name, "LOG_LEVEL") || !strcmp(name, "LOG_FORMAT");
}

void config_take(struct config *running, const struct config *fresh, void (*changed)(const char *key, bool taken))
{
    for (size_t i = 0; i < KEYS; i++) {
        const struct key *k = &keys[i];
        char *to = (char *)running + k->offset;
        const char *from = (const char *)fresh + k->offset;
        if (k->bytes ? !strcmp(to, from) : !memcmp(to, from, sizeof(uint32_t)))
            continue;
        if (can_change(k))
            memcpy(to, from, k->bytes ? k->bytes : sizeof(uint32_t));
        changed(k->name, can_change(k));
    }
}

struct json_object *config_describe(const struct config *config)
{
    struct json_object *o = json_object_new_object();

    for (size_t i = 0; i < KEYS; i++) {
        const char *field = (const char *)config + keys[i].offset;
        uint32_t number;
        memcpy(&number, field, sizeof(number));
        (void)json_object_object_add(o, keys[i].name, keys[i].bytes ? json_text(field) : json_int(number));
    }
    return o;
}

void config_print_help(void)
{
    printf("fccd - serves fused computation-collectives to the processes of this node\n\n"
           "Usage: fccd [--background] [--config FILE] [--KEY VALUE ...]\n"
           "       fccd --check-config | --list-gpus | --help | --version\n\n"
           "With --background it returns when it listens, and says where its process id and its log are.\n"
           "Settings come from " CONFIG_FILE_DEFAULT " (KEY=VALUE lines), from the environment (FCCD_KEY)\n"
           "and from the command line (--key), which wins.\n\n");
    for (size_t i = 0; i < KEYS; i++) {
        const struct key *k = &keys[i];
        const char *standard = *k->standard ? k->standard : "empty";
        printf("  %-25s %s (%s%s%s)\n", option_of(k->name).text, k->what, standard, *k->unit ? " " : "", k->unit);
    }
}

uint64_t config_memory_per_user(const struct config *config)
{
    if (config->memory_per_user_mb)
        return (uint64_t)config->memory_per_user_mb << 20;
    struct cgroup group;
    uint64_t node = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    cgroup_find(&group, "", 0);
    uint64_t limit = cgroup_limit(&group);
    return (limit < node ? limit : node) / 2;
}

static uint64_t bytes_of(uint32_t mb, uint64_t otherwise)
{
    return mb ? (uint64_t)mb << 20 : otherwise;
}

struct account_limits config_limits(const struct config *config)
{
    struct account_limits limits = {.of = {{0}}};
    uint64_t *user = limits.of[ACCOUNT_USER], *job = limits.of[ACCOUNT_JOB];

    user[ACCOUNT_MEMORY] = config_memory_per_user(config);
    job[ACCOUNT_MEMORY] = bytes_of(config->memory_per_job_mb, INT64_MAX);
    user[ACCOUNT_GPU_MEMORY] = bytes_of(config->gpu_memory_per_user_mb, INT64_MAX);
    job[ACCOUNT_GPU_MEMORY] = bytes_of(config->gpu_memory_per_job_mb, INT64_MAX);
    user[ACCOUNT_COMMS] = config->comms_per_user;
    job[ACCOUNT_COMMS] = config->comms_per_job;
    user[ACCOUNT_OPERATORS] = config->operators_per_user;
    job[ACCOUNT_OPERATORS] = config->operators_per_job;
    user[ACCOUNT_STREAMS] = config->streams_per_user;
    job[ACCOUNT_STREAMS] = config->streams_per_job;
    return limits;
}

uint32_t config_cpu_workgroups(const struct config *config)
{
    cpu_set_t mine; /* the cores that this process may use, which a container or taskset may limit */
    long cores = sched_getaffinity(0, sizeof(mine), &mine) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&mine);

    if (config->cpu_workgroups)
        return config->cpu_workgroups;
    return cores > (long)config->cpu_devices ? (uint32_t)cores / config->cpu_devices : 1;
}

uint32_t config_rails(const struct config *config)
{
    return strcmp(config->rails, "auto") != 0 ? (uint32_t)(config->rails[0] - '0') : 0;
}

bool config_allows_gpus(const struct config *config, const char *kind)
{
    return !strcmp(config->gpus, "auto") || !strcmp(config->gpus, kind);
}
