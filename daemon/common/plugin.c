/* SPDX-License-Identifier: MIT */
#include "daemon/common/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const plugin_kinds[PLUGIN_KINDS] = {"cuda", "hip"};

#define PATH_ROOM 4200

int plugin_file(const char *kind, const char *dir, char *out, size_t room, struct error *e)
{
    char here[PATH_MAX] = ""; /* DIR/bin/fccd; "DIR/bin/fccd (deleted)" if the file was replaced */
    int n;

    if (!*dir && readlink("/proc/self/exe", here, sizeof(here) - 1) < 0)
        return error_set(e, -errno, "/proc/self/exe: %m: without /proc, PLUGIN_DIR must say where the plug-ins are");
    if (*dir)
        n = snprintf(out, room, "%s/%s.so", dir, kind);
    else
        n = snprintf(out, room, "%s/lib/fccd/%s.so", dirname(dirname(here)), kind);
    return n >= 0 && (size_t)n < room ? 0 : error_set(e, -ENAMETOOLONG, "%s: longer than %zu bytes", out, room - 1);
}

static int path_check(const char *path, struct error *e)
{
    if (access(path, F_OK) == 0)
        return 0;
    if (errno == ENOENT)
        return error_set(e, -ENOENT, "the plug-in was not built: there is no %s", path);
    return error_set(e, -ELIBBAD, "%s: %m", path);
}

int plugin_find(const char *kind, const char *dir, struct error *e)
{
    char path[PATH_ROOM];
    int status = plugin_file(kind, dir, path, sizeof(path), e);

    return status ? status : path_check(path, e);
}

void *plugin_open(const char *name, const char *dir, struct error *e)
{
    char path[PATH_ROOM];

    if (plugin_file(name, dir, path, sizeof(path), e) || path_check(path, e))
        return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        (void)error_set(e, -ELIBBAD, "%s", dlerror());
    return library;
}

const struct gpu_plugin *plugin_load(const char *kind, const char *dir, struct error *e)
{
    char path[PATH_ROOM];
    gpu_plugin_function *function;
    void *library = plugin_open(kind, dir, e);

    if (!library || plugin_file(kind, dir, path, sizeof(path), e))
        return NULL;
    void *symbol = dlsym(library, GPU_PLUGIN_SYMBOL);
    memcpy(&function, &symbol, sizeof(function)); /* ISO C has no cast from void * to a function pointer */
    const struct gpu_plugin *plugin = symbol ? function() : NULL;
    if (!plugin)
        (void)error_set(e, -EPROTO, "%s: no plug-in of fccd: it has no %s()", path, GPU_PLUGIN_SYMBOL);
    else if (plugin->abi != GPU_PLUGIN_ABI)
        (void)error_set(e, -EPROTO, "%s: plug-in interface %u: this fccd has %u", path, plugin->abi, GPU_PLUGIN_ABI);
    else if (strcmp(plugin->kind, kind) != 0)
        (void)error_set(e, -EPROTO, "%s: a plug-in for \"%s\": expected \"%s\"", path, plugin->kind, kind);
    else
        return plugin;
    (void)dlclose(library);
    return NULL;
}
