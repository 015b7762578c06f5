/* SPDX-License-Identifier: MIT
 *
 * parameters.c - the rates and times of a machine that a fit may change, and how they stand in its description.
 */
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/simulate/fit.h"
#include "client/fccctl/simulate/reading.h"

/* Bandwidths of links are what a cable or a switch says, and times are small beside what surrounds them: so times may be farther off. */
#define RATE_REACH 50
#define TIME_REACH 1000

struct parameter {
    const char *name; /* the keys that lead to it */
    enum unit_kind unit;
    size_t at; /* in struct sim_machine */
};
#define OF(member) offsetof(struct sim_machine, member)
static const struct parameter parameters[] = {
    {"device.memory", UNIT_RATE, OF(device.memory_bytes_s)},
    {"device.workgroup_memory", UNIT_RATE, OF(device.workgroup_bytes_s)},
    {"device.cache", UNIT_BYTES, OF(device.cache_bytes)},
    {"device.cache_memory", UNIT_RATE, OF(device.cache_bytes_s)},
    {"device.near_cache", UNIT_BYTES, OF(device.near_bytes)},
    {"device.near_memory", UNIT_RATE, OF(device.near_bytes_s)},
    {"device.table_cache", UNIT_BYTES, OF(device.table_cache_bytes)},
    {"device.table_memory", UNIT_RATE, OF(device.table_bytes_s)},
    {"device.exposed", UNIT_PART, OF(device.exposed)},
    {"device.rates.bag", UNIT_FLOPS_RATE, OF(device.flops_s[COMPUTE_BAG])},
    {"device.rates.gemv", UNIT_FLOPS_RATE, OF(device.flops_s[COMPUTE_GEMV])},
    {"device.rates.gemm", UNIT_FLOPS_RATE, OF(device.flops_s[COMPUTE_GEMM])},
    {"device.rates.sum", UNIT_FLOPS_RATE, OF(device.flops_s[COMPUTE_VECTOR])},
    {"device.tiles.load", UNIT_RATE, OF(device.tile_bytes_s)},
    {"device.tiles.sums", UNIT_RATE, OF(device.tile_sums_bytes_s)},
    {"device.tiles.store", UNIT_RATE, OF(device.tile_store_bytes_s)},
    {"device.tiles.begin", UNIT_TIME, OF(device.tile_begin_s)},
    {"device.hand_over", UNIT_TIME, OF(device.hand_over_s)},
    {"device.inline", UNIT_TIME, OF(device.inline_s)},
    {"device.launch", UNIT_TIME, OF(device.launch_s)},
    {"device.step", UNIT_TIME, OF(device.step_s)},
    {"device.slice", UNIT_TIME, OF(device.slice_s)},
    {"device.row", UNIT_TIME, OF(device.row_s)},
    {"node.bandwidth", UNIT_RATE, OF(node.link_bytes_s)},
    {"node.workgroup", UNIT_RATE, OF(node.store_bytes_s)},
    {"node.latency", UNIT_TIME, OF(node.link_latency_s)},
    {"fabric.bandwidth", UNIT_RATE, OF(fabric.bytes_s)},
    {"fabric.latency", UNIT_TIME, OF(fabric.latency_s)},
    {"fabric.hop", UNIT_TIME, OF(fabric.hop_s)},
    {"fabric.message", UNIT_TIME, OF(fabric.message_s)},
    {"fabric.receive", UNIT_TIME, OF(fabric.receive_s)},
    {"fabric.copy", UNIT_RATE, OF(fabric.copy_bytes_s)},
    {"fabric.core_wait", UNIT_TIME, OF(fabric.core_wait_s)},
};
#define NPARAMETERS ((int)(sizeof(parameters) / sizeof(parameters[0])))
_Static_assert(sizeof(parameters) / sizeof(parameters[0]) <= PARAMETERS_MAX, "room");

const char *parameter_name(int i)
{
    return i < NPARAMETERS ? parameters[i].name : NULL;
}

double *parameter_at(struct sim_machine *m, int i)
{
    return (double *)(void *)((char *)m + parameters[i].at);
}

double parameter_reach(int i, double value)
{
    if (parameters[i].unit == UNIT_PART)
        return value < 1 ? 1 / value : 1;
    return parameters[i].unit == UNIT_TIME ? TIME_REACH : RATE_REACH;
}

enum fit_group parameter_group(int i)
{
    return parameters[i].unit == UNIT_TIME ? FIT_TIMES : parameters[i].unit == UNIT_FLOPS_RATE ? FIT_FLOPS : FIT_BYTES;
}

/* The object that has it, and its key. NULL: the description does not have it. */
static struct json_object *parameter_object(struct json_object *machine, int i, const char **key)
{
    struct words path = words("%s", parameters[i].name);
    char *rest = path.text, *part;

    *key = strrchr(parameters[i].name, '.') + 1;
    while ((part = strsep(&rest, ".")) && rest)
        machine = object_member(machine, part);
    return object_member(machine, *key) ? machine : NULL;
}

struct words parameter_text(struct json_object *machine, int i, double value)
{
    const char *key;
    struct json_object *o = parameter_object(machine, i, &key);

    return unit_text(value, parameters[i].unit, o ? json_object_get_string(object_member(o, key)) : "");
}

double parameter_rounded(struct json_object *machine, int i, double value)
{
    struct error e = {0};
    double out = value;

    (void)unit_parse(parameter_text(machine, i, value).text, parameters[i].unit, &out, &e);
    return out;
}

void parameter_put(struct json_object *machine, int i, double value)
{
    const char *key;
    struct json_object *o = parameter_object(machine, i, &key);
    const struct words text = parameter_text(machine, i, value);

    if (o)
        (void)json_object_object_add(o, key, json_text(text.text));
}
