/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_code.c - the fake GPUs' compiler, whose image of a source is its text's hash, and the kernels that it makes: they do what the interpreter does.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_gpu/fake_gpu_inside.h"

#define IMAGE "fake code "

struct gpu_code {
    int gpu;
};

int fake_compiler(int gpu, const char *path, char text[GPU_COMPILER_TEXT], struct error *e)
{
    if (path && strcmp(path, FAKE_GPU_COMPILER) != 0)
        return error_set(e, -ENOENT, "no compiler for GPUs (fake): %s", path);
    if (call_check(FAKE_COMPILER, gpu, "finding a compiler", e))
        return e->status;
    (void)snprintf(text, GPU_COMPILER_TEXT, "fake 1.0, driver 1, chip %d", gpu % 2);
    return 0;
}

int fake_code_compile(int gpu, const char *source, void **image, size_t *bytes, struct error *e)
{
    char *made = NULL;

    if (call_check(FAKE_CODE_COMPILE, gpu, "compiling", e))
        return e->status;
    (void)atomic_fetch_add(&control->compiling, 1);
    while (control->compile_hold)
        (void)usleep(1000);
    if (control->compile_refuses[0] && strstr(source, control->compile_refuses)) {
        (void)atomic_fetch_sub(&control->compiling, 1);
        return error_set(e, -EIO, "the compiler for GPUs (fake): it has refused %s", control->compile_refuses);
    }
    wrong(!strstr(source, "#include \"kernels/gpu/device/generated.h\"") || !strstr(source, "GENERATED_KERNEL("), "a source");
    if (asprintf(&made, IMAGE "%zu", strlen(source)) < 0)
        return error_set(e, -ENOMEM, "out of memory");
    *image = made;
    *bytes = strlen(made);
    (void)atomic_fetch_add(&control->compiled, 1);
    (void)atomic_fetch_sub(&control->compiling, 1);
    return 0;
}

int fake_code_load(int gpu, const void *image, size_t bytes, struct gpu_code **out, struct error *e)
{
    return call_check(FAKE_CODE_LOAD, gpu, "loading a kernel", e) ? e->status : fake_code_take(gpu, image, bytes, out);
}

int fake_code_take(int gpu, const void *image, size_t bytes, struct gpu_code **out)
{
    wrong(bytes <= strlen(IMAGE) || memcmp(image, IMAGE, strlen(IMAGE)) != 0, "an image");
    queues_check("a kernel is loaded while something is in a queue");
    *out = calloc(1, sizeof(**out));
    (*out)->gpu = gpu;
    (void)atomic_fetch_add(&control->codes, 1);
    return 0;
}

void fake_code_free(struct gpu_code *code)
{
    called();
    queues_check("a kernel is freed while something is in a queue");
    fake_code_drop(code);
}

void fake_code_drop(struct gpu_code *code)
{
    free(code);
    (void)atomic_fetch_sub(&control->codes, 1);
}

int fake_launch_code(struct gpu_launch *l, const struct gpu_code *code, struct error *e)
{
    launch_idle_check(l, "the kernel of a launch in a queue changes");
    wrong(l->fixed.shape.compute != COMPUTE_STEP, "generated code for another operator");
    wrong(code && code->gpu != l->gpu, "another GPU's generated code");
    l->code = NULL;
    if (code && call_check(FAKE_LAUNCH_CODE, l->gpu, "its kernel", e))
        return e->status;
    l->code = code;
    return 0;
}
