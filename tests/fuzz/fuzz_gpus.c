/* SPDX-License-Identifier: MIT
 *
 * fuzz_gpus.c - clients of any manners, and a worker of one node with fake GPUs (tests/fake_gpu/fake_gpu.h), which may be slow or fail (program.h).
 */
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/fuzz/program.h"

static struct fake_gpus *fake;
static char directory[] = "/tmp/fccd-fuzz.XXXXXX";

static void directory_remove(void)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/cuda.so", directory);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, FAKE_GPU_CONTROL);
    (void)unlink(path);
    (void)rmdir(directory);
}

/* The plug-in that was built beside this program, and what it is controlled by. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char self[PATH_MAX], plugin[PATH_MAX + 32], path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    (void)argc, (void)argv;
    FUZZ_CHECK(n > 0 && mkdtemp(directory) && atexit(directory_remove) == 0);
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    (void)snprintf(plugin, sizeof(plugin), "%s/fake_plugin/cuda.so", self);
    (void)snprintf(path, sizeof(path), "%s/cuda.so", directory);
    FUZZ_CHECK(access(plugin, R_OK) == 0 && symlink(plugin, path) == 0);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, FAKE_GPU_CONTROL);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, sizeof(*fake)) == 0);
    fake = mmap(NULL, sizeof(*fake), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(fake != MAP_FAILED);
    (void)close(fd);
    bed_begin(directory);
    return 0;
}

static void gpus_change(struct input *in)
{
    uint32_t how = input_u8(in);

    switch (how & 7) {
    case 0:
        fake->store_us = how >> 3 & 1 ? 1500 : 0;
        break;
    case 1:
        fake->run_us = how >> 3 & 1 ? 1500 : 0;
        break;
    case 2:
        fake->hold = how >> 3 & 3;
        break;
    case 3:
        fake->linger = how >> 3 & 3;
        break;
    case 4:
        fake->fail_gpu = how >> 3 & 1;
        fake->fail = FAKE_MEMORY_ALLOC + (how >> 4) % 5;
        break;
    case 5:
        fake->failing_rank = how >> 3 & 1;
        fake->failure = (struct gpu_failure){.kind = 1};
        fake->failing = 1;
        break;
    default:
        fake->copy_us = how >> 3 & 1 ? 1500 : 0;
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct program_kind kind = {.nodes = 1, .device = FCC_DEVICE_CUDA, .device_step = gpus_change};

    memset(fake, 0, sizeof(*fake));
    fake->gpus = 2;
    program_run(&kind, data, size);
    if (fake->wrong)
        fuzz_failed(__FILE__, __LINE__, "%d wrong calls of the plug-in, first: %s", fake->wrong, fake->what_is_wrong);
    FUZZ_CHECK(!fake->contexts && !fake->memories && !fake->registered && !fake->launches && !fake->sessions &&
               !fake->prepared);
    return 0;
}
