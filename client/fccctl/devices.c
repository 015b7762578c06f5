/* SPDX-License-Identifier: MIT
 *
 * devices.c - the verb devices, and functions about devices for other verbs.
 */
#include "client/fccctl/devices.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/print.h"

int devices_ask(const char *socket, struct json_object **out, struct error *e)
{
    struct fcc_query query = {.what = FCC_QUERY_DEVICES};
    return control_ask(socket, getuid(), "", &query, DEVICES_LIMIT_MS, out, e);
}

bool device_is_gpu(struct json_object *device)
{
    return strcmp(field_text(device, "kind"), "cpu") != 0;
}

const char *devices_why_none(struct json_object *answer, const char *kind, char *out, size_t room)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < field_count(answer, "plugins") && used < room; i++) {
        struct json_object *p = field_at(answer, "plugins", i);
        if (strcmp(field_text(p, "state"), "ok") == 0 || (kind && strcmp(field_text(p, "kind"), kind) != 0))
            continue;
        used += (size_t)snprintf(out + used, room - used, "%s%s: %s", used ? "; " : "", field_text(p, "kind"),
                                 field_text(p, "status"));
    }
    return text_clean(out);
}

static void devices_print(struct json_object *answer)
{
    struct table *table = table_new(">DEVICE|KIND|NAME|>UNITS|>MEMORY|>NUMA|PEERS|LINK|PCI");
    char text[FORMAT_ROOM], peers[256], why[2048];

    for (size_t i = 0; i < field_count(answer, "devices"); i++) {
        struct json_object *d = field_at(answer, "devices", i);
        table_number(table, field_int(d, "device", -1));
        table_text(table, field_text(d, "kind"));
        table_text(table, field_text(d, "name"));
        table_number(table, field_int(d, device_is_gpu(d) ? "multiprocessors" : "workgroups", -1));
        table_text(table, format_bytes(field_double(d, "memory_bytes", 0), text));
        table_number(table, field_int(d, "numa_node", -1));
        table_text(table, field_list(d, "peers", peers, sizeof(peers)));
        table_text(table, field_text(d, "link"));
        table_text(table, field_text(d, "pci"));
    }
    (void)table_print(table, "", stdout);
    table_free(table);
    if (*devices_why_none(answer, NULL, why, sizeof(why)))
        printf("no devices of these kinds: %s\n", why);
}

int verb_devices(struct call *call)
{
    struct json_object *answer;
    struct error e;
    int code;

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (devices_ask(call->socket, &answer, &e))
        return verb_error(call, control_exit(&e), "%s", e.text);
    code = field_count(answer, "devices") ? EXIT_WELL : EXIT_UNWELL;
    control_show(call, answer, devices_print);
    return code;
}
