/* SPDX-License-Identifier: MIT
 *
 * devices.h - the node's devices, as the broker lists them.
 */
#ifndef FCC_CLIENT_FCCCTL_DEVICES_H
#define FCC_CLIENT_FCCCTL_DEVICES_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/error.h"

struct json_object;

/* Longer than the 20 s after which the broker answers without GPUs: a query for the devices waits until the broker has listed
 * the GPUs. */
#define DEVICES_LIMIT_MS 25000

/* Queries the broker for its devices. Returns as control_ask(). */
int devices_ask(const char *socket, struct json_object **out, struct error *e);

/* Is the device a GPU? */
bool device_is_gpu(struct json_object *device);

/* The reasons in the answer to devices_ask() why there are no GPUs of that kind (NULL: of any kind): "cuda: ...; hip: ...". ""
 * if it has none. */
const char *devices_why_none(struct json_object *answer, const char *kind, char *out, size_t room);

#endif
