/* SPDX-License-Identifier: MIT
 *
 * plugin.c - the function that verbs.so exports.
 */
#include "daemon/net/verbs/verbs.h"

const struct net_plugin *net_plugin(void);
__attribute__((visibility("default"))) const struct net_plugin *net_plugin(void)
{
    static const struct net_plugin plugin = {NET_PLUGIN_ABI, &net_verbs};

    return &plugin;
}
