/* SPDX-License-Identifier: MIT
 *
 * driver.c - runs a fuzz target where there is no libFuzzer: every input of the corpus, then seeded random changes of them. It takes those of
 * libFuzzer's options that tests/fuzz/run gives, and writes the input of a crash where libFuzzer does. It does not see which code an input
 * reaches, so it finds less.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { INPUTS_MAX = 4096, CHANGES_MAX = 8 };

void __sanitizer_set_death_callback(void (*callback)(void));
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

struct file {
    uint8_t *bytes;
    size_t length;
};

static struct file inputs[INPUTS_MAX];
static size_t ninputs;
static char kept[512]; /* the path of the input that crashes; "": nobody asks for it */
static size_t nkept;
static size_t longest = 4096;
static unsigned timeout_s = 30;
static uint64_t state;
static const uint8_t *current; /* what runs now */
static size_t current_length;

/* Marsaglia, Xorshift RNGs (Journal of Statistical Software, 2003). */
static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The process is about to end, by whatever it found: in a signal handler. */
static void crash_keep(void)
{
    static const char says[] = "Test unit written to ";

    if (!current || !nkept)
        return;
    int fd = open(kept, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, current, current_length) == (ssize_t)current_length)
        (void)(write(STDERR_FILENO, says, sizeof(says) - 1) + write(STDERR_FILENO, kept, nkept) +
               write(STDERR_FILENO, "\n", 1));
    current = NULL;
}

static void on_signal(int number)
{
    crash_keep();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
    _exit(70);
}

static void run(const uint8_t *bytes, size_t length)
{
    uint8_t *exact = malloc(length ? length : 1); /* so that the sanitizer sees who reads beyond */

    if (!exact)
        exit(1);
    memcpy(exact, bytes, length);
    current = exact;
    current_length = length;
    (void)alarm(timeout_s);
    (void)LLVMFuzzerTestOneInput(exact, length);
    (void)alarm(0);
    current = NULL;
    free(exact);
}

static void file_read(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st)) {
        (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    if (S_ISREG(st.st_mode) && ninputs < INPUTS_MAX) {
        struct file *f = &inputs[ninputs];
        f->bytes = malloc((size_t)st.st_size + 1);
        ssize_t n = f->bytes ? read(fd, f->bytes, (size_t)st.st_size) : -1;
        if (n >= 0) {
            f->length = (size_t)n;
            ninputs++;
        }
    }
    (void)close(fd);
}

/* A file, or all those of a directory. True: it was a file. */
static bool inputs_read(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *entry;
    char name[1024];

    if (!d) {
        file_read(path);
        return true;
    }
    while ((entry = readdir(d)))
        if (entry->d_name[0] != '.') {
            (void)snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
            file_read(name);
        }
    (void)closedir(d);
    return false;
}

/* One change in place; returns the new length. */
static size_t change(uint8_t *bytes, size_t length)
{
    size_t at = length ? next_random() % length : 0, n = 1 + next_random() % 16;

    switch (next_random() % 7) {
    case 0: /* a bit */
        if (length)
            bytes[at] ^= (uint8_t)(1u << next_random() % 8);
        return length;
    case 1: /* a byte */
        if (length)
            bytes[at] = (uint8_t)next_random();
        return length;
    case 2: /* bytes go */
        n = n < length - at ? n : length - at;
        memmove(bytes + at, bytes + at + n, length - at - n);
        return length - n;
    case 3: /* bytes come */
        n = n < longest - length ? n : longest - length;
        memmove(bytes + at + n, bytes + at, length - at);
        for (size_t i = 0; i < n; i++)
            bytes[at + i] = (uint8_t)next_random();
        return length + n;
    case 4: { /* bytes of itself once more, elsewhere */
        size_t from = length ? next_random() % length : 0;
        n = n < length - from ? n : length - from;
        n = n < length - at ? n : length - at;
        memmove(bytes + at, bytes + from, n);
        return length;
    }
    case 5: { /* goes on as another one does */
        const struct file *other = &inputs[next_random() % ninputs];
        size_t from = other->length ? next_random() % other->length : 0;
        n = other->length - from < longest - at ? other->length - from : longest - at;
        memcpy(bytes + at, other->bytes + from, n);
        return at + n;
    }
    default: /* is cut */
        return at;
    }
}

static unsigned long long fuzz_for(double seconds)
{
    uint8_t *bytes = malloc(longest);
    double until = now_s() + seconds;
    unsigned long long n = 0;

    if (!bytes)
        exit(1);
    for (; now_s() < until; n++) {
        const struct file *f = &inputs[next_random() % ninputs];
        size_t length = f->length < longest ? f->length : longest;
        memcpy(bytes, f->bytes, length);
        for (uint64_t changes = 1 + next_random() % CHANGES_MAX; changes; changes--)
            length = change(bytes, length);
        run(bytes, length);
    }
    free(bytes);
    return n;
}

int main(int argc, char *argv[])
{
    double seconds = 0, began = now_s();
    bool only_files = false;
    struct rusage usage;

    state = 88172645463325252u;
    if (LLVMFuzzerInitialize)
        (void)LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "-max_total_time=", 16))
            seconds = atof(argv[i] + 16);
        else if (!strncmp(argv[i], "-artifact_prefix=", 17))
            nkept = (size_t)snprintf(kept, sizeof(kept) - 1, "%.400scrash-%ld", argv[i] + 17, (long)getpid());
        else if (!strncmp(argv[i], "-max_len=", 9))
            longest = strtoul(argv[i] + 9, NULL, 10);
        else if (!strncmp(argv[i], "-timeout=", 9))
            timeout_s = (unsigned)strtoul(argv[i] + 9, NULL, 10);
        else if (!strncmp(argv[i], "-seed=", 6))
            state ^= strtoull(argv[i] + 6, NULL, 10) * 0x9e3779b97f4a7c15u;
        else if (argv[i][0] != '-')
            only_files |= inputs_read(argv[i]);
    }
    if (!ninputs)
        inputs[ninputs++] = (struct file){.bytes = calloc(1, 1), .length = 1};
    __sanitizer_set_death_callback(crash_keep);
    (void)signal(SIGABRT, on_signal);
    (void)signal(SIGALRM, on_signal);
    for (size_t i = 0; i < ninputs; i++)
        run(inputs[i].bytes, inputs[i].length);
    unsigned long long n = ninputs + (only_files ? 0 : fuzz_for(seconds));
    (void)getrusage(RUSAGE_SELF, &usage);
    (void)fprintf(stderr, "Done %llu runs in %.0f second(s)\nstat::number_of_executed_units: %llu\nstat::peak_rss_mb: %ld\n", n,
                  now_s() - began, n, usage.ru_maxrss / 1024);
    for (size_t i = 0; i < ninputs; i++)
        free(inputs[i].bytes);
    return 0;
}
