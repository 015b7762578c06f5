/* SPDX-License-Identifier: MIT */
#include "daemon/common/gpus.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/common/plugin.h"
#include "proto/base/json_fd.h"

static struct json_object *cleaned(const char *text)
{
    char clean[FCC_TEXT_MAX];

    text_copy(clean, sizeof(clean), text);
    return json_text(text_clean(clean));
}

/* ---- plug-ins ---- */

static void plugin_add(struct json_object *plugins, const char *kind, const char *state, const char *status)
{
    (void)json_object_array_add(plugins,
                                JSON_OBJECT({"kind", cleaned(kind)}, {"state", cleaned(state)}, {"status", cleaned(status)}));
}

/* ---- one GPU ---- */

/* The NUMA node of a PCI device; -1 if the kernel does not know it. */
static int numa_node_of(const char *pci)
{
    char path[128], line[32] = "";
    int node = -1;

    (void)snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", pci);
    FILE *f = fopen(path, "re");
    if (f && fgets(line, sizeof(line), f))
        node = (int)strtol(line, NULL, 10);
    if (f)
        (void)fclose(f);
    return node < 0 ? -1 : node;
}

/* The plug-ins' kinds of link, the fastest first. */
static const char *const link_order[] = {"NVLink", "xGMI", "PCIe"};
#define LINKS (sizeof(link_order) / sizeof(link_order[0]))

static size_t link_rank(const char *link)
{
    size_t i = 0;

    while (i < LINKS && strcmp(link_order[i], link) != 0)
        i++;
    return i;
}

static void peers_add(struct json_object *o, const struct gpu_description *d, int ngpus)
{
    struct json_object *peers = json_object_new_array(), *links = json_object_new_array();
    const char *best = NULL;

    for (int p = 0; p < ngpus; p++) {
        if (!(d->peers & 1u << p))
            continue;
        (void)json_object_array_add(peers, json_int(p));
        (void)json_object_array_add(links, json_text(d->links[p]));
        if (!best || link_rank(d->links[p]) < link_rank(best))
            best = d->links[p];
    }
    JSON_ADD(o, {"peers", peers}, {"links", links}, {"link", cleaned(best ? best : "none")});
}

static struct json_object *gpu_describe(const char *kind, int gpu, int ngpus, struct gpu_description *d)
{
    const unsigned char *u = d->uuid;
    char uuid[40];

    for (char *p = d->pci; *p; p++)
        *p = (char)tolower((unsigned char)*p); /* the kernel uses lower case */
    (void)snprintf(uuid, sizeof(uuid), "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
                   u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    struct json_object *o =
        JSON_OBJECT({"device", json_int(gpu)}, {"kind", cleaned(kind)}, {"name", cleaned(d->name)},
                    {"memory_bytes", json_int(d->memory_bytes)}, {"multiprocessors", json_int(d->multiprocessors)});
    peers_add(o, d, ngpus);
    JSON_ADD(o, {"numa_node", json_int(numa_node_of(d->pci))}, {"pci", cleaned(d->pci)}, {"uuid", cleaned(uuid)},
             {"stream_memory_operations", json_object_new_boolean(d->stream_memory_operations != 0)});
    return o;
}

/* ---- the list ---- */

/* Adds all GPUs of one plug-in. A GPU that cannot be described is left out, and the plug-in's status says so; the others keep
 * their indices. */
static void kind_list(const struct gpu_plugin *plugin, struct json_object *gpus, struct json_object *plugins)
{
    struct error e = {0}, left_out = {0};
    char status[2 * FCC_TEXT_MAX];
    int found = plugin->count(&e), ngpus = found < GPU_MAX_GPUS ? found : GPU_MAX_GPUS, n;

    if (found <= 0) {
        plugin_add(plugins, plugin->kind, found == -ENODEV || found == 0 ? "none" : "failed", e.text);
        return;
    }
    for (int i = 0; i < ngpus; i++) {
        struct gpu_description d = {0};
        if (plugin->describe(i, &d, &e))
            (void)error_set(&left_out, e.status, "; GPU %d is left out: %s", i, e.text);
        else
            (void)json_object_array_add(gpus, gpu_describe(plugin->kind, i, ngpus, &d));
    }
    n = snprintf(status, sizeof(status), "%d GPU%s", found, found == 1 ? "" : "s");
    if (found > ngpus)
        n += snprintf(status + n, sizeof(status) - (size_t)n, ", of which fccd serves the first %d", ngpus);
    (void)snprintf(status + n, sizeof(status) - (size_t)n, "%s", left_out.text);
    plugin_add(plugins, plugin->kind, "ok", status);
}

bool gpus_need_plugins(const struct config *config)
{
    for (int i = 0; i < PLUGIN_KINDS; i++)
        if (config_allows_gpus(config, plugin_kinds[i]) && plugin_find(plugin_kinds[i], config->plugin_dir, NULL) != -ENOENT)
            return true;
    return false;
}

struct json_object *gpus_list(const struct config *config, const char *state, const char *status)
{
    struct json_object *gpus = json_object_new_array(), *plugins = json_object_new_array();

    for (int i = 0; i < PLUGIN_KINDS; i++) {
        const char *kind = plugin_kinds[i];
        const struct gpu_plugin *plugin = NULL;
        struct error e = {0};
        if (!config_allows_gpus(config, kind)) {
            (void)error_set(&e, -EPERM, "left out: GPUS is \"%s\"", config->gpus);
            plugin_add(plugins, kind, "off", e.text);
            continue;
        }
        if (state)
            (void)plugin_find(kind, config->plugin_dir, &e);
        else
            plugin = plugin_load(kind, config->plugin_dir, &e);
        if (plugin)
            kind_list(plugin, gpus, plugins);
        else if (e.status == -ENOENT)
            plugin_add(plugins, kind, "not built", e.text);
        else
            plugin_add(plugins, kind, state ? state : "failed", state ? status : e.text);
    }
    return JSON_OBJECT({"gpus", gpus}, {"plugins", plugins});
}

int gpus_print(const struct config *config)
{
    FILE *out = NULL;
    int keep;

    /* A GPU's runtime may print to standard output, which would spoil the JSON. So its output goes to standard error. */
    (void)fflush(stdout);
    keep = dup(STDOUT_FILENO);
    if (keep >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0)
        out = fdopen(keep, "w");
    if (!out) {
        (void)fprintf(stderr, "fccd: standard output: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    struct json_object *list = gpus_list(config, NULL, NULL);
    int status = fprintf(out, "%s\n", json_object_to_json_string_ext(list, JSON_C_TO_STRING_NOSLASHESCAPE)) < 0;
    status |= fclose(out) != 0;
    (void)json_object_put(list);
    if (status)
        (void)fprintf(stderr, "fccd: standard output: %s\n", strerror(errno));
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
