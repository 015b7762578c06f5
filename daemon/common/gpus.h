/* SPDX-License-Identifier: MIT
 *
 * gpus.h - the GPUs of this node, as JSON: `fccd --list-gpus`. A process of its own asks the plug-ins, so that the broker
 * holds no GPU state, and a runtime that crashes or hangs takes nothing along.
 *
 *   {"gpus":    [{"device": its number within its kind, "kind": "cuda", "name", "memory_bytes", "multiprocessors",
 *                 "peers": [numbers], "links": [the link to each of them], "link": the best of them, "numa_node", "pci", "uuid",
 *                 "stream_memory_operations": whether client streams can be followed without the CPU}, ...],
 *    "plugins": [{"kind", "state", "status": the state in words}, ...]}
 *
 * The states of a plug-in: "ok" (it has GPUs), "none" (it works, and there is no GPU of its kind), "off" (GPUS leaves it out),
 * "not built" (its file is not there), "failed", and, for as long as the broker waits for this list, "listing".
 */
#ifndef FCC_DAEMON_COMMON_GPUS_H
#define FCC_DAEMON_COMMON_GPUS_H

#include <json-c/json.h>

#include "daemon/common/config.h"

/* Would listing load any plug-in? If not, gpus_list() may be called anywhere. */
bool gpus_need_plugins(const struct config *config);

/* Load the plug-ins that GPUS allows, and list. The caller puts the object. */
struct json_object *gpus_list(const struct config *config);

/* The list without GPUs, and each plug-in that GPUS allows, and that is there, in that state. Loads nothing. */
struct json_object *gpus_list_without(const struct config *config, const char *state, const char *status);

/* fccd --list-gpus: the list as one line on standard output. Returns the process's exit status. */
int gpus_print(const struct config *config);

#endif
