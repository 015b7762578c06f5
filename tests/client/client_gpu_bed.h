/* SPDX-License-Identifier: MIT
 *
 * client_gpu_bed.h - what test_client_gpu.c and test_client_stream.c share: a client whose rank is on a GPU of the fake driver
 * (fake_driver.c), which such a program finds by running itself again with LD_LIBRARY_PATH set.
 */
#ifndef CLIENT_GPU_BED_H
#define CLIENT_GPU_BED_H

#include "tests/client/client_bed.h"

#include <dlfcn.h>

#include "client/device/accelerator.h"
#include "tests/fake_gpu/fake_driver.h"

#define GPU FAKE_DEVICE    /* the fake worker's answer, and which of the fake driver's it is */
#define WORDS_GPUS 0x8005u /* of the communicator */

static struct fake_driver *driver; /* of the kind that is tested */

struct manner {
    enum fcc_device_kind kind;
    bool functions; /* on the CPU, instead of stream memory operations */
    bool gpu_words; /* the words of streams are in the memory of GPUs */
};
static const struct manner manners[] = {{FCC_DEVICE_CUDA, false, false},
                                        {FCC_DEVICE_CUDA, true, false},
                                        {FCC_DEVICE_HIP, false, false},
                                        {FCC_DEVICE_HIP, true, false},
                                        {FCC_DEVICE_CUDA, false, true}};
#define MANNERS (sizeof(manners) / sizeof(manners[0]))

static inline void driver_use(enum fcc_device_kind kind)
{
    /* for good, as libfccclient has it */
    void *library = dlopen(kind == FCC_DEVICE_CUDA ? "libcuda.so.1" : "libamdhip64.so.5", RTLD_NOW);

    assert_non_null(library);
    driver = dlsym(library, FAKE_DRIVER_SYMBOL);
    assert_non_null(driver);
    driver->fail = -1;
    driver->gpus = FAKE_GPUS;
    driver->hip_version = 50221153;
    driver->no_stream_words = driver->capturing = false;
    driver->writes = driver->batches = driver->fills = driver->waits = driver->functions = 0;
}

/* Everything that was made is gone. */
static inline void driver_is_clean(void)
{
    assert_int_equal(driver->broken, 0);
    assert_int_equal(driver->contexts, 0);
    assert_int_equal(driver->streams, 0);
    assert_int_equal(driver->handles, 0);
    assert_int_equal(driver->addresses, 0);
    assert_int_equal(driver->mappings, 0);
    assert_int_equal(driver->registered, 0);
}

static const struct fcc_comm_options on_gpu = {.device = -1, .device_kind = FCC_DEVICE_GPU};

static inline struct bed gpu_connect(struct manner how)
{
    struct bed b = {.fake = fake_new(HONEST)};
    struct fcc_connect_options o = {.socket_path = b.fake->path, .job = "test", .no_stream_memory_operations = how.functions};

    driver_use(how.kind);
    b.fake->device_kind = how.kind;
    b.fake->memory_kind = FCC_MEMORY_GPU_FD;
    b.fake->device_uuid = FAKE_UUID(GPU);
    b.fake->words_gpus = how.gpu_words ? WORDS_GPUS : 0;
    assert_int_equal(fcc_connect(&o, &b.context), 0);
    return b;
}

static inline struct bed gpu_open(struct manner how, int nranks)
{
    struct bed b = gpu_connect(how);
    struct fcc_unique_id id = {{0}};

    if (fcc_comm_init(b.context, &id, nranks, 0, &on_gpu, &b.comm))
        fail_msg("%s", fcc_last_error());
    return b;
}

static inline void gpu_close(struct bed *b)
{
    bed_close(b);
    driver_is_clean();
}

/* The program's own streams, made with the driver. */
static inline const struct driver *own_driver(const struct bed *b)
{
    return b->comm->accelerator->driver;
}

static inline void *stream_open(const struct bed *b)
{
    int before;
    void *stream;

    assert_int_equal(accelerator_enter(b->comm->accelerator, &before), 0);
    assert_int_equal(own_driver(b)->stream_create(&stream, DRIVER_STREAM_OWN_ORDER), 0);
    accelerator_leave(b->comm->accelerator, before);
    return stream;
}

static inline void gate_run(void *argument)
{
    while (!*(_Atomic bool *)argument)
        (void)poll(NULL, 0, 1);
}

static inline void gate_callback(void *stream, int status, void *argument)
{
    (void)stream;
    assert_int_equal(status, 0);
    gate_run(argument);
}

/* What the last stream has come to that waits for an operator in the slot. */
static inline _Atomic uint32_t *finished_word(const struct bed *b, uint32_t slot)
{
    return b->comm->words_gpus ? &b->fake->words[GPU]->finished[slot].value : &b->context->memory->slot[slot].stream_finished;
}

/* What comes onto the stream from now on waits until *open is true. */
static inline void stream_gate(const struct bed *b, void *stream, _Atomic bool *open)
{
    if (own_driver(b)->stream_function)
        (void)own_driver(b)->stream_function(stream, gate_run, open);
    else
        (void)own_driver(b)->stream_callback(stream, gate_callback, open, 0);
}

static inline void stream_close(const struct bed *b, void *stream)
{
    (void)own_driver(b)->stream_synchronize(stream);
    (void)own_driver(b)->stream_destroy(stream);
}

/* Run again with the fake driver in front of any real one. */
static inline void run_again(char *argv[])
{
    const char *others = getenv("LD_LIBRARY_PATH");
    char self[PATH_MAX], path[2 * PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (getenv("FCC_TEST_FAKE_DRIVER") || n < 0)
        return;
    self[n] = 0;
    *strrchr(self, '/') = 0;
    (void)snprintf(path, sizeof(path), "%s/fake_driver%s%s", self, others ? ":" : "", others ? others : "");
    (void)setenv("LD_LIBRARY_PATH", path, 1);
    (void)setenv("FCC_TEST_FAKE_DRIVER", path, 1);
    (void)execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    exit(1);
}

#endif
