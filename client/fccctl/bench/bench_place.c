/* SPDX-License-Identifier: MIT
 *
 * bench_place.c - each rank's node and device, and the private daemons of --local.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/fccctl/bench/bench.h"
#include "client/fccctl/control.h"
#include "client/fccctl/field.h"

#define SLACK_MS 30000 /* added to the daemon's time limit; without progress for longer, a benchmark hangs */

/* ---- the nodes' daemons ---- */

int bench_sockets_split(struct bench *b, char *list)
{
    char *rest = list, *path;

    for (b->nodes = 0; (path = strsep(&rest, ","));) {
        if (!*path || b->nodes == LOCAL_NODES_MAX)
            return -EINVAL;
        b->sockets[b->nodes++] = path;
    }
    return 0;
}

static int node_ranks(const struct bench *b, int node)
{
    int n = 0;

    for (int r = 0; r < b->shape.nranks; r++)
        n += bench_node(b, r) == node;
    return n;
}

/* Starts private daemons with only what the ranks need, because listing GPUs takes time. */
int bench_local_start(struct bench *b, struct local_nodes *out, struct error *e)
{
    enum { DEVICES_MOST = 64 }; /* of CPU_DEVICES */
    struct local_options options[LOCAL_NODES_MAX];
    bool cpu = strcmp(b->device, "cpu") == 0;
    const char *gpus = cpu ? "none" : strcmp(b->device, "gpu") == 0 ? "auto" : b->device;
    int status;

    for (int i = 0; i < b->nodes; i++) {
        int ranks = node_ranks(b, i), most = cpu ? DEVICES_MOST : 1;
        options[i] = (struct local_options){.devices = ranks < most ? ranks : most, .gpus = gpus};
    }
    status = local_nodes_start(options, b->nodes, out, e);
    for (int i = 0; i < b->nodes && !status; i++)
        b->sockets[i] = out->daemons[i].socket;
    return status;
}

/* ---- devices ---- */

/* Sets the kind of the ranks' devices. "gpu" becomes the kind of the daemon's first GPU. */
static void kind_resolve(struct bench *b, struct json_object *answer)
{
    static const char *const kinds[] = {[FCC_DEVICE_CPU] = "cpu", [FCC_DEVICE_HIP] = "hip", [FCC_DEVICE_CUDA] = "cuda"};
    const char *name = b->device;

    for (size_t i = 0; i < field_count(answer, "devices") && strcmp(name, "gpu") == 0; i++) {
        if (strcmp(field_text(field_at(answer, "devices", i), "kind"), "cpu") != 0)
            name = field_text(field_at(answer, "devices", i), "kind");
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i] && strcmp(kinds[i], name) == 0) {
            b->device = kinds[i];
            b->device_kind = (enum fcc_device_kind)i;
        }
    }
}

/* Gives each rank of the node a device of the requested kind. All daemons of one machine have the same GPUs, so a daemon's
 * ranks take the GPUs after those of the daemon before. Returns 0, or an exit code (printed). */
static int ranks_place(const struct call *call, struct bench *b, int node, struct json_object *answer)
{
    int found[1024], nfound = 0, next = 0;

    kind_resolve(b, answer);
    for (size_t i = 0; i < field_count(answer, "devices") && nfound < 1024; i++) {
        struct json_object *d = field_at(answer, "devices", i);
        if (strcmp(field_text(d, "kind"), b->device) == 0)
            found[nfound++] = (int)field_int(d, "device", 0);
    }
    if (nfound == 0) {
        struct words why = devices_why_none(answer, strcmp(b->device, "gpu") == 0 ? NULL : b->device);
        return verb_error(call, EXIT_UNWELL, "--device: \"%s\": this fccd has none%s%s%s; 'fccctl devices' lists what it has",
                          b->device, *why.text ? " (" : "", why.text, *why.text ? ")" : "");
    }
    for (int r = 0; r < b->shape.nranks; r++) {
        bool here = bench_node(b, r) == node;
        if (here)
            b->devices[r] = found[next % nfound];
        next += here || b->device_kind != FCC_DEVICE_CPU;
    }
    return 0;
}

/* Asks for the node's address at other nodes. Returns 0, or an exit code (printed). */
static int address_learn(const struct call *call, struct bench *b, int node)
{
    struct json_object *answer;
    struct error e;

    if (b->nodes == 1)
        return 0;
    if (control_ask_broker(b->sockets[node], FCC_QUERY_NODES, &answer, &e))
        return control_fail(call, &e);
    for (size_t i = 0; i < field_count(answer, "nodes"); i++) {
        struct json_object *n = field_at(answer, "nodes", i);
        if (strcmp(field_text(n, "state"), "here") == 0)
            (void)snprintf(b->addresses[node], FCC_NODE_MAX, "%s", field_text(n, "address"));
    }
    (void)json_object_put(answer);
    if (*b->addresses[node])
        return 0;
    return verb_error(call, EXIT_UNWELL, "%s: this fccd speaks to no other node: its NODE_LISTEN is empty", b->sockets[node]);
}

static int node_choose(const struct call *call, struct bench *b, int node)
{
    struct json_object *answer;
    struct error e;
    int code, limit_ms;

    if (control_ask_broker(b->sockets[node], FCC_QUERY_DEVICES, &answer, &e))
        return control_fail(call, &e);
    code = ranks_place(call, b, node, answer);
    (void)json_object_put(answer);
    if (code || (code = address_learn(call, b, node)))
        return code;
    if (control_ask_broker(b->sockets[node], FCC_QUERY_STATUS, &answer, &e))
        return control_fail(call, &e);
    limit_ms = (int)(field_int(answer, "time_limit_ms", 30000) % 86400001) + SLACK_MS;
    b->limit_ms = limit_ms > b->limit_ms ? limit_ms : b->limit_ms;
    (void)json_object_put(answer);
    return 0;
}

int bench_devices_choose(const struct call *call, struct bench *b)
{
    int code = 0;

    for (int i = 0; i < b->nodes && !code; i++)
        code = node_choose(call, b, i);
    return code;
}
