/* SPDX-License-Identifier: MIT */
#include "proto/base/log_limit.h"

#include <pthread.h>
#include <stdio.h>

#define WINDOW_NS (LOG_WINDOW_S * 1000000000ull)

struct kind {
    const char *format; /* compared by address, as formats are string literals; NULL: the entry is free */
    uint64_t subject;
    uint64_t since_ns;  /* when the window began */
    unsigned may, said; /* lines that may be written in this window, and that were */
    uint64_t unsaid;    /* lines that were suppressed in this window */
    enum log_level level;
    char text[200]; /* the last line that was written */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects kinds */
static struct kind kinds[LOG_KINDS + 1];                 /* the last entry is shared by kinds that found no free entry */

static bool kind_is_over(const struct kind *k, uint64_t now_ns)
{
    return now_ns - k->since_ns >= WINDOW_NS;
}

static void count_say(const struct kind *k, uint64_t now_ns, log_say say)
{
    char text[sizeof(k->text) + 96];

    if (!k->unsaid)
        return;
    (void)snprintf(text, sizeof(text), "%llu more lines like this one in the last %llu s: %s", (unsigned long long)k->unsaid,
                   (unsigned long long)((now_ns - k->since_ns) / 1000000000u), k->text);
    say(k->level, text);
}

/* Ends the kind's window: writes its count, and begins the next window. */
static void kind_renew(struct kind *k, uint64_t now_ns, log_say say)
{
    count_say(k, now_ns, say);
    k->may = k->unsaid && now_ns - k->since_ns < 2 * WINDOW_NS ? 1 : LOG_BURST;
    k->since_ns = now_ns;
    k->said = 0;
    k->unsaid = 0;
}

static struct kind *kind_find(const char *format, uint64_t subject)
{
    for (int i = 0; i < LOG_KINDS; i++)
        if (kinds[i].format == format && kinds[i].subject == subject)
            return &kinds[i];
    return NULL;
}

/* An entry for a new kind: a free one, else one whose window has ended, else the shared one. */
static struct kind *kind_place(const char *format, uint64_t subject, uint64_t now_ns, log_say say)
{
    struct kind *k = &kinds[LOG_KINDS];

    for (int i = 0; i < LOG_KINDS; i++) {
        if (!kinds[i].format || kind_is_over(&kinds[i], now_ns)) {
            k = &kinds[i];
            break;
        }
    }
    if (k != &kinds[LOG_KINDS] || !k->format) {
        count_say(k, now_ns, say);
        *k = (struct kind){.format = format, .subject = subject, .since_ns = now_ns, .may = LOG_BURST};
    }
    return k;
}

bool log_limit_take(enum log_level level, const char *format, uint64_t subject, uint64_t now_ns, log_say say)
{
    (void)pthread_mutex_lock(&lock);
    struct kind *k = kind_find(format, subject);
    if (!k)
        k = kind_place(format, subject, now_ns, say);
    if (kind_is_over(k, now_ns))
        kind_renew(k, now_ns, say);
    bool may = k->said < k->may;
    if (may)
        k->said++;
    else
        k->unsaid++;
    k->level = level;
    (void)pthread_mutex_unlock(&lock);
    return may;
}

void log_limit_note(const char *format, uint64_t subject, const char *text)
{
    (void)pthread_mutex_lock(&lock);
    struct kind *k = kind_find(format, subject);
    if (!k)
        k = &kinds[LOG_KINDS];
    (void)snprintf(k->text, sizeof(k->text), "%s", text);
    (void)pthread_mutex_unlock(&lock);
}

void log_limit_catch_up(uint64_t now_ns, bool all, log_say say)
{
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i <= LOG_KINDS; i++)
        if (kinds[i].unsaid && (all || kind_is_over(&kinds[i], now_ns)))
            kind_renew(&kinds[i], now_ns, say);
    (void)pthread_mutex_unlock(&lock);
}
