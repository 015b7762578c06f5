/* SPDX-License-Identifier: MIT
 *
 * compile.hip - compiles the source of a program's step, and loads what comes of it. What of the compilers' C interfaces is needed (NVIDIA, nvrtc.h;
 * AMD, hiprtc.h, which has the same functions) is declared here.
 *
 * A worker compiles, and runs, no code for its own processor: the source is made of a program's checked words (kernels/generate/generate.c), the compiler
 * makes code for the GPU alone, in memory, and that code does what the interpreter would have done for the same words, with the same addresses. So a user
 * who may run programs gains nothing by it; and it runs as that user, on the GPUs of that user's job.
 *
 * No headers of the vendor's are read: the project's, without the system's, are part of the plug-in (device_text), and the compilers know the rest.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gpu/plugin/compile.h"
#include "kernels/gpu/step.h"

static const char headers[] =
#include "kernels/gpu/plugin/device_text.h"
    ;

struct rtc {
    int (*version)(int *major, int *minor);
    int (*create)(void **program, const char *source, const char *name, int n, const char *const texts[],
                  const char *const names[]);
    int (*compile)(void *program, int n, const char *const options[]);
    int (*log_size)(void *program, size_t *bytes);
    int (*log)(void *program, char *text);
    int (*code_size)(void *program, size_t *bytes);
    int (*code)(void *program, char *image);
    int (*destroy)(void **program);
    const char *(*error)(int status);
};

#if defined(__CUDACC__)
#define RTC "nvrtc"
#define RTC_CODE "CUBIN"
static const char *const rtc_names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
#else
#define RTC "hiprtc"
#define RTC_CODE "Code"
static const char *const rtc_names[] = {"libhiprtc.so", "libhiprtc.so.6", "libhiprtc.so.5", "libamdhip64.so",
                                        "libamdhip64.so.5"};
#endif

/* Besides the chip. No two instructions are joined by the source itself (generated.h), so an operation is compiled as the plug-in's are. */
static const char *const options[] = {
    "-std=c++17",
#if defined(__CUDACC__)
    "-default-device",
    "-device-int128",
    "-w",
#else
    "-O3",
#endif
};
#define OPTIONS ((int)(sizeof(options) / sizeof(options[0])))

template <typename Function> static bool rtc_find(void *library, const char *name, Function *out)
{
    char whole[64];

    (void)snprintf(whole, sizeof(whole), RTC "%s", name);
    *out = (Function)dlsym(library, whole);
    return *out != NULL;
}

static bool rtc_load(void *library, struct rtc *out)
{
    return rtc_find(library, "Version", &out->version) && rtc_find(library, "CreateProgram", &out->create) &&
           rtc_find(library, "CompileProgram", &out->compile) && rtc_find(library, "GetProgramLogSize", &out->log_size) &&
           rtc_find(library, "GetProgramLog", &out->log) && rtc_find(library, "Get" RTC_CODE "Size", &out->code_size) &&
           rtc_find(library, "Get" RTC_CODE, &out->code) && rtc_find(library, "DestroyProgram", &out->destroy) &&
           rtc_find(library, "GetErrorString", &out->error);
}

/* The compiler; NULL: *e says why there is none. It is looked for once, by compiler(), of which no two run at a time, and stays: code_compile(), which several
 * threads call behind it, only reads what it has found. NVRTC and hiprtc compile different programs in several threads. */
static const struct rtc *rtc_open(const char *given, struct error *e)
{
    static struct rtc functions;
    static bool looked, found;
    static char why[FCC_TEXT_MAX];
    void *library = NULL;

    for (size_t i = 0; !looked && !library && i < (given ? 1 : sizeof(rtc_names) / sizeof(rtc_names[0])); i++) {
        library = dlopen(given ? given : rtc_names[i], RTLD_NOW | RTLD_LOCAL);
        if (!library && (given || i == 0))
            (void)snprintf(why, sizeof(why), "%s", dlerror());
    }
    if (library && !(found = rtc_load(library, &functions))) {
        (void)snprintf(why, sizeof(why), "%s lacks functions of " RTC, given ? given : "its library");
        (void)dlclose(library);
    }
    if (!looked)
        looked = true;
    if (!found)
        (void)error_set(e, -ENOENT, "no compiler for GPUs (" RTC "): %s", why);
    return found ? &functions : NULL;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(1469598103934665603); /* FNV-1a (Fowler, Noll, Vo) */

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return hash;
}

/* The chip as the compiler's option. */
static int chip_option(int gpu, char out[GPU_COMPILER_TEXT / 2], struct error *e)
{
    hipDeviceProp_t properties;
    hipError_t status = hipGetDeviceProperties(&properties, gpu);

    if (status != hipSuccess)
        return gpu_error(e, gpu, "its properties", status);
#if defined(__CUDACC__)
    (void)snprintf(out, GPU_COMPILER_TEXT / 2, "--gpu-architecture=sm_%d%d", properties.major, properties.minor);
#else
    (void)snprintf(out, GPU_COMPILER_TEXT / 2, "--offload-arch=%.200s", properties.gcnArchName);
#endif
    return 0;
}

int compiler(int gpu, const char *library, char text[GPU_COMPILER_TEXT], struct error *e)
{
    const struct rtc *rtc = rtc_open(library, e);
    char chip[GPU_COMPILER_TEXT / 2];
    int major = 0, minor = 0, driver = 0;

    if (!rtc)
        return e->status;
    if (chip_option(gpu, chip, e))
        return e->status;
    if (rtc->version(&major, &minor) || hipDriverGetVersion(&driver) != hipSuccess)
        return error_set(e, -EIO, "the compiler for GPUs (" RTC ") or the driver has no version");
    int n = snprintf(text, GPU_COMPILER_TEXT, RTC " %d.%d, driver %d, headers %016" PRIx64 ", %s", major, minor, driver,
                     hash_of(headers), chip);
    for (int i = 0; i < OPTIONS && n < GPU_COMPILER_TEXT; i++)
        n += snprintf(text + n, (size_t)(GPU_COMPILER_TEXT - n), " %s", options[i]);
    return 0;
}

/* What the compiler says, its first lines. */
static int compile_error(const struct rtc *rtc, void *program, int status, struct error *e)
{
    size_t bytes = 0;
    char *text = rtc->log_size(program, &bytes) == 0 && bytes < 1 << 24 ? (char *)calloc(1, bytes + 1) : NULL;

    if (text && rtc->log(program, text) == 0)
        for (char *p = text; *p; p++)
            *p = *p == '\n' ? ' ' : *p;
    (void)error_set(e, -EIO, "the compiler for GPUs (" RTC "): %s: %.300s", rtc->error(status), text ? text : "");
    (void)text_clean(e->text);
    free(text);
    return e->status;
}

static int image_take(const struct rtc *rtc, void *program, void **image, size_t *bytes, struct error *e)
{
    size_t n = 0;
    int status = rtc->code_size(program, &n);
    char *code = status ? NULL : (char *)malloc(n + 1);

    if (status || !code || (status = rtc->code(program, code)) != 0) {
        free(code);
        return error_set(e, status ? -EIO : -ENOMEM, "the compiler for GPUs (" RTC "): %s",
                         status ? rtc->error(status) : "no memory");
    }
    *image = code;
    *bytes = n;
    return 0;
}

int code_compile(int gpu, const char *source, void **image, size_t *bytes, struct error *e)
{
    const char *const texts[] = {headers}, *const names[] = {"kernels/gpu/device/generated.h"};
    const struct rtc *rtc = rtc_open(NULL, e);
    char chip[GPU_COMPILER_TEXT / 2];
    const char *all[OPTIONS + 1] = {chip};
    void *program = NULL;

    if (!rtc || chip_option(gpu, chip, e))
        return e->status;
    memcpy(all + 1, options, sizeof(options));
    int status = rtc->create(&program, source, "step.cu", 1, texts, names);
    if (status)
        return error_set(e, -EIO, "the compiler for GPUs (" RTC "): %s", rtc->error(status));
    status = rtc->compile(program, OPTIONS + 1, all);
    status = status ? compile_error(rtc, program, status, e) : image_take(rtc, program, image, bytes, e);
    (void)rtc->destroy(&program);
    return status;
}

int code_load(int gpu, const void *image, size_t, struct gpu_code **out, struct error *e)
{
    struct gpu_code *code = (struct gpu_code *)calloc(1, sizeof(*code));
    hipError_t status = hipSetDevice(gpu);
    hipModule_t module = NULL;
    hipFunction_t function = NULL;
    int threads = 0;

    if (!code)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for a kernel", GPU_KIND, gpu);
    if (status == hipSuccess)
        status = hipModuleLoadData(&module, image);
    if (status == hipSuccess &&
        ((status = hipModuleGetFunction(&function, module, GPU_STEP_GENERATED)) != hipSuccess ||
         (status = hipFuncGetAttribute(&threads, HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function)) != hipSuccess))
        (void)hipModuleUnload(module);
    if (status != hipSuccess) {
        free(code);
        return gpu_error(e, gpu, "loading a generated kernel", status);
    }
    *code = {gpu, module, (const void *)function, (unsigned)threads};
    *out = code;
    return 0;
}

void code_free(struct gpu_code *code)
{
    if (hipSetDevice(code->gpu) == hipSuccess)
        (void)hipModuleUnload((hipModule_t)code->module);
    free(code);
}
