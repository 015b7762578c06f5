/* SPDX-License-Identifier: MIT */
#include "daemon/common/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const plugin_kinds[PLUGIN_KINDS] = {"cuda", "hip"};

#define PATH_ROOM 4200

static int plugin_path(const char *kind, const char *dir, char out[PATH_ROOM], struct error *e)
{
    char here[4096];
    ssize_t n;

    if (*dir) {
        (void)snprintf(out, PATH_ROOM, "%s/%s.so", dir, kind);
        return 0;
    }
    n = readlink("/proc/self/exe", here, sizeof(here) - 1);
    if (n < 0)
        return error_set(e, -errno, "/proc/self/exe: %m: without /proc, PLUGIN_DIR must say where the plug-ins are");
    here[n] = '\0'; /* DIR/bin/fccd; "DIR/bin/fccd (deleted)" if the file was replaced */
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(here, '/');
        if (slash)
            *slash = '\0';
    }
    (void)snprintf(out, PATH_ROOM, "%s/lib/fccd/%s.so", here, kind);
    return 0;
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
    int status = plugin_path(kind, dir, path, e);

    return status ? status : path_check(path, e);
}

int plugin_file(const char *kind, const char *dir, char *out, size_t room, struct error *e)
{
    char path[PATH_ROOM] = "", here[PATH_MAX] = "";
    int status = plugin_path(kind, dir, path, e);

    if (!status && path[0] != '/' && !getcwd(here, sizeof(here)))
        status = error_set(e, -errno, "the current directory: %m");
    if (status)
        return status;
    int n = snprintf(out, room, "%s%s%s", here, here[0] ? "/" : "", path);
    return n >= 0 && (size_t)n < room ? 0 : error_set(e, -ENAMETOOLONG, "%s: longer than %zu bytes", path, room - 1);
}

void *plugin_open(const char *name, const char *dir, struct error *e)
{
    char path[PATH_ROOM];

    if (plugin_path(name, dir, path, e) || path_check(path, e))
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

    if (!library || plugin_path(kind, dir, path, e))
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
