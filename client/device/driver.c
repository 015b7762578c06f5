/* SPDX-License-Identifier: MIT
 *
 * driver.c - loads a GPU's driver at run time.
 */
#include "client/device/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "client/core/context.h"

static const struct {
    const char *cuda, *hip;
    size_t offset; /* offset of the function pointer in struct driver */
} functions[] = {
#define X(result, member, cuda, hip, parameters) {cuda, hip, offsetof(struct driver, member)},
    DRIVER_FUNCTIONS(X)
#undef X
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct driver drivers[] = {
    {
        .kind = FCC_DEVICE_CUDA,
        .name = "cuda",
        .visible = "CUDA_VISIBLE_DEVICES",
        .libraries = {"libcuda.so.1"},
        .stream_attribute = 122,
        .major_attribute = 75,
        .waits_cyclically = true,
    },
    {
        .kind = FCC_DEVICE_HIP,
        .name = "hip",
        .visible = "HIP_VISIBLE_DEVICES",
        /* The functions used are the same in versions 5 to 7, except where accelerator.c checks runtime_version. */
        .libraries = {"libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64.so"},
        .stream_attribute = 10013,
    },
};
#define DRIVER_LIBRARIES (sizeof(drivers[0].libraries) / sizeof(drivers[0].libraries[0]))

const char *driver_function_name(const struct driver *d, enum driver_function f)
{
    return d->kind == FCC_DEVICE_CUDA ? functions[f].cuda : functions[f].hip;
}

/* The library that the program has loaded, if any: addresses are valid only in the library that made them. */
static void *library_open(const struct driver *d)
{
    void *library = NULL;

    for (size_t i = 0; i < DRIVER_LIBRARIES && d->libraries[i] && !library; i++)
        library = dlopen(d->libraries[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (size_t i = 0; i < DRIVER_LIBRARIES && d->libraries[i] && !library; i++)
        library = dlopen(d->libraries[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static int functions_find(struct driver *d, void *library)
{
    for (int f = 0; f < DRIVER_FUNCTION_COUNT; f++) {
        const char *name = driver_function_name(d, f);
        void *function = name ? dlsym(library, name) : NULL;
        if (name && !function)
            return last_error_set(-ENODEV, "the %s driver of this machine has no %s: it is too old for this library", d->name,
                                  name);
        memcpy((char *)d + functions[f].offset, &function, sizeof(function));
    }
    return 0;
}

int driver_load(enum fcc_device_kind kind, const struct driver **out)
{
    struct driver *d = &drivers[kind == FCC_DEVICE_HIP];
    int status = 0;

    (void)pthread_mutex_lock(&lock);
    if (!d->library) {
        void *library = library_open(d);
        if (!library) {
            const char *why = dlerror();
            status = last_error_set(-ENODEV, "the %s driver cannot be loaded, which a rank on such a GPU needs: %s", d->name,
                                    why ? why : d->libraries[0]);
        } else {
            status = functions_find(d, library);
            if (status)
                (void)dlclose(library);
            else
                d->library = library; /* kept loaded: drivers do not support unloading */
        }
    }
    (void)pthread_mutex_unlock(&lock);
    if (!status)
        *out = d;
    return status;
}

void driver_explain(const struct driver *d, int result, char *text, size_t room)
{
    const char *name = NULL, *words = NULL;

    if (d->kind == FCC_DEVICE_CUDA) {
        (void)d->error_name(result, &name); /* leaves NULL for an unknown result */
        (void)d->error_text(result, &words);
    } else {
        name = d->result_name(result);
        words = d->result_text(result);
    }
    (void)snprintf(text, room, "%s (%s)", name ? name : "unknown error", words ? words : "no description");
    if (!name && room)
        (void)snprintf(text, room, "error %d", result);
}
