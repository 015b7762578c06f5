/* SPDX-License-Identifier: MIT
 *
 * compile.h - the vendor's compiler for source that is made where it runs (NVRTC, hiprtc), and what it makes, inside of the plug-in. The compiler is
 * loaded at run time where the machine has it, so the plug-in is built and loads without it.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_COMPILE_H
#define FCC_KERNELS_GPU_PLUGIN_COMPILE_H

#include "kernels/gpu/plugin/inside.h"

/* A kernel that was compiled, on one GPU. */
struct gpu_code {
    int gpu;
    void *module;
    const void *function;
    unsigned threads; /* of a workgroup */
};

int compiler(int gpu, const char *library, char text[GPU_COMPILER_TEXT], struct error *e);
int code_compile(int gpu, const char *source, void **image, size_t *bytes, struct error *e);
int code_load(int gpu, const void *image, size_t bytes, struct gpu_code **out, struct error *e);
void code_free(struct gpu_code *code);

#endif
