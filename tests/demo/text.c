/* SPDX-License-Identifier: MIT
 *
 * text.c - a text file as words: runs of letters and digits; bytes beyond ASCII count as letters.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/demo/demo.h"

#define TEXT_MAX_BYTES (16u << 20)

static bool is_word_byte(unsigned char c)
{
    return isalnum(c) || c >= 128;
}

static int file_read(const char *path, unsigned char **out, size_t *length, struct error *e)
{
    FILE *f = fopen(path, "rb");
    unsigned char *bytes;
    int status = 0;

    if (!f)
        return error_set(e, -errno, "%s: %s", path, strerror(errno));
    bytes = malloc(TEXT_MAX_BYTES + 1);
    if (!bytes) {
        (void)fclose(f);
        return error_set(e, -ENOMEM, "%s: no memory for it", path);
    }
    *length = fread(bytes, 1, TEXT_MAX_BYTES + 1, f);
    if (ferror(f))
        status = error_set(e, -EIO, "%s: %s", path, strerror(errno));
    else if (*length > TEXT_MAX_BYTES)
        status = error_set(e, -EINVAL, "%s: more than %u bytes: allowed are at most so many", path, TEXT_MAX_BYTES);
    (void)fclose(f);
    if (status)
        free(bytes);
    else
        *out = bytes;
    return status;
}

static uint64_t word_hash(const unsigned char *bytes, uint32_t length)
{
    uint64_t hash = length;

    for (uint32_t i = 0; i < length; i++)
        hash = hash_join(hash, (uint64_t)tolower(bytes[i]));
    return hash;
}

static int64_t words_find(const unsigned char *bytes, size_t length, struct word *words)
{
    int64_t n = 0;

    for (size_t i = 0; i < length;) {
        size_t start = i;
        while (i < length && is_word_byte(bytes[i]))
            i++;
        if (i > start) {
            words[n] = (struct word){.bytes = bytes + start, .length = (uint32_t)(i - start)};
            words[n].hash = word_hash(words[n].bytes, words[n].length);
            n++;
        } else {
            i++;
        }
    }
    return n;
}

static int compare_hashes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int count_distinct(struct text *t)
{
    uint64_t *hashes = malloc((size_t)t->nwords * sizeof(*hashes));

    if (!hashes)
        return -ENOMEM;
    for (int64_t i = 0; i < t->nwords; i++)
        hashes[i] = t->words[i].hash;
    qsort(hashes, (size_t)t->nwords, sizeof(*hashes), compare_hashes);
    t->ndistinct = 1;
    for (int64_t i = 1; i < t->nwords; i++)
        t->ndistinct += hashes[i] != hashes[i - 1];
    free(hashes);
    return 0;
}

int text_load(const char *path, struct text *out, struct error *e)
{
    struct text t = {0};
    size_t length = 0;
    int status = file_read(path, &t.bytes, &length, e);

    if (status)
        return status;
    t.words = malloc((length / 2 + 1) * sizeof(*t.words)); /* a word and what parts it from the next */
    if (t.words)
        t.nwords = words_find(t.bytes, length, t.words);
    if (!t.words || (t.nwords > 0 && count_distinct(&t)))
        status = error_set(e, -ENOMEM, "%s: no memory for its words", path);
    else if (t.nwords == 0)
        status = error_set(e, -EINVAL, "%s: no words: allowed are texts of at least one", path);
    if (status)
        text_free(&t);
    else
        *out = t;
    return status;
}

void text_free(struct text *text)
{
    free(text->words);
    free(text->bytes);
    *text = (struct text){0};
}

const struct word *text_word(const struct text *text, int64_t i)
{
    return &text->words[i % text->nwords];
}
