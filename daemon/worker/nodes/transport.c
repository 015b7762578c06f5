/* SPDX-License-Identifier: MIT */
#include "daemon/worker/nodes/transport.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "daemon/common/plugin.h"
#include "proto/base/log.h"

/* Any thread that adds connections: the loader gives the same library again. */
static const struct net_ops *verbs_load(const char *plugin_dir, struct error *e)
{
    net_plugin_function *function;
    void *library = plugin_open("verbs", plugin_dir, e);

    if (!library)
        return NULL;
    void *symbol = dlsym(library, NET_PLUGIN_SYMBOL);
    memcpy(&function, &symbol, sizeof(function)); /* the way from an object's address to a function's that C allows */
    const struct net_plugin *plugin = symbol ? function() : NULL;
    if (plugin && plugin->abi == NET_PLUGIN_ABI)
        return plugin->ops;
    (void)error_set(e, -EPROTO, "the plug-in verbs.so is not one of this fccd's version");
    (void)dlclose(library);
    return NULL;
}

const struct net_ops *net_choose(const char *transport, const char *plugin_dir, int sock, struct error *e)
{
    struct error why = {0};

    if (!strcmp(transport, "tcp"))
        return &net_tcp;
    const struct net_ops *verbs = verbs_load(plugin_dir, &why);
    if (verbs && !verbs->usable(sock, &why))
        return verbs;
    if (!strcmp(transport, "verbs")) {
        (void)error_set(e, why.status, "TRANSPORT is verbs: %s", why.text);
        return NULL;
    }
    log_debug("data goes over tcp: %s", why.text);
    return &net_tcp;
}
