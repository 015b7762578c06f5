/* SPDX-License-Identifier: MIT
 *
 * gpus.h - the GPUs of this node, as JSON: `fccd --list-gpus`. The broker runs that as a separate process, so that the broker
 * itself holds no GPU state, and a GPU runtime that crashes or hangs does not affect it.
 *
 *   {"gpus":    [{"device": index within its kind, "kind": "cuda", "name", "memory_bytes", "multiprocessors",
 *                 "peers": [devices it can address], "links": [the link to each of them], "link": the fastest link,
 *                 "numa_node", "pci", "uuid", "stream_memory_operations": whether streams synchronize with fccd without the
 *                 CPU}, ...],
 *    "plugins": [{"kind", "state", "status": the state in words}, ...]}
 *
 * The states of a plug-in: "ok" (it has GPUs), "none" (it works, but there is no GPU of its kind), "off" (the setting GPUS
 * excludes it), "not built" (its file does not exist), "failed", and "listing" while the broker waits for the list.
 */
#ifndef FCC_DAEMON_COMMON_GPUS_H
#define FCC_DAEMON_COMMON_GPUS_H

#include <json-c/json.h>

#include "daemon/common/config.h"

/* Would gpus_list() load any plug-in? If not, any process may call it. */
bool gpus_need_plugins(const struct config *config);

/* Loads the plug-ins that the setting GPUS allows, and lists their GPUs. With a state, loads nothing and lists no GPUs: each
 * plug-in that GPUS allows and that exists has this state and status. The caller releases the object with json_object_put(). */
struct json_object *gpus_list(const struct config *config, const char *state, const char *status);

/* fccd --list-gpus: prints the list as one line on standard output. Returns the process's exit status. */
int gpus_print(const struct config *config);

#endif
