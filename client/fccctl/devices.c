/* SPDX-License-Identifier: MIT
 *
 * devices.c - the verb devices, and functions about devices for other verbs.
 */
#include <stdio.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/print.h"

struct words devices_why_none(struct json_object *answer, const char *kind)
{
    struct words why = {""};

    for (size_t i = 0; i < field_count(answer, "plugins"); i++) {
        struct json_object *p = field_at(answer, "plugins", i);
        if (strcmp(field_text(p, "state"), "ok") != 0 && (!kind || strcmp(field_text(p, "kind"), kind) == 0))
            words_add(&why, "%s%s: %s", *why.text ? "; " : "", field_text(p, "kind"), field_text(p, "status"));
    }
    (void)text_clean(why.text);
    return why;
}

static void devices_print(struct json_object *answer)
{
    struct words why = devices_why_none(answer, NULL);

    table_of(answer, "devices",
             ">DEVICE=device|KIND=kind|NAME=name|>UNITS=multiprocessors/workgroups|>MEMORY=memory_bytes|>NUMA=numa_node|"
             "PEERS=peers|LINK=link|PCI=pci",
             "");
    if (*why.text)
        printf("no devices of these kinds: %s\n", why.text);
}

int verb_devices(struct call *call)
{
    struct json_object *answer;
    struct error e;

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (control_ask_broker(call->socket, FCC_QUERY_DEVICES, &answer, &e))
        return control_fail(call, &e);
    return control_show(call, answer, field_count(answer, "devices") > 0, devices_print);
}
