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

/* Beyond the 20 s after which the broker answers without GPUs: until it has listed them, who asks for the devices waits. */
#define DEVICES_LIMIT_MS 25000

/* Ask the broker for its devices. As control_ask(). */
int devices_ask(const char *socket, struct json_object **out, struct error *e);

/* Is the device a GPU? */
bool device_is_gpu(struct json_object *device);

/* Why there are no GPUs of that kind (NULL: of any), in words of the answer to devices_ask(): "cuda: ...; hip: ...". "" if it
 * does not say. */
const char *devices_why_none(struct json_object *answer, const char *kind, char *out, size_t room);

#endif
