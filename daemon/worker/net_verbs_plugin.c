/* SPDX-License-Identifier: MIT
 *
 * net_verbs_plugin.c - what verbs.so has for fccd.
 */
#include "net_verbs.h"

const struct net_plugin *net_plugin(void);
__attribute__((visibility("default"))) const struct net_plugin *net_plugin(void)
{
    static const struct net_plugin plugin = {NET_PLUGIN_ABI, &net_verbs};

    return &plugin;
}
