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
    char why[2048];

    table_of(answer, "devices",
             ">DEVICE=device|KIND=kind|NAME=name|>UNITS=multiprocessors/workgroups|>MEMORY=memory_bytes|>NUMA=numa_node|"
             "PEERS=peers|LINK=link|PCI=pci",
             "");
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
