/* SPDX-License-Identifier: MIT */
#include "daemon/common/denial.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>

struct auth_header denial_header(void)
{
    return (struct auth_header){.magic = {'f', 'c', 'c', 'd', 'd', 'e', 'n', 'y'}, .version = DENIAL_VERSION};
}

int denial_seal(struct denial *d, const struct fcc_unique_id *id)
{
    d->header = denial_header();
    if (getrandom(d->nonce, sizeof(d->nonce), 0) != sizeof(d->nonce))
        return -EIO;
    return auth_tag(id->bytes, sizeof(id->bytes), d, offsetof(struct denial, tag), d->tag);
}

bool denial_open(const struct denial *d, const struct fcc_unique_id *id)
{
    unsigned char expected[AUTH_TAG_BYTES];

    return !auth_tag(id->bytes, sizeof(id->bytes), d, offsetof(struct denial, tag), expected) &&
           CRYPTO_memcmp(d->tag, expected, sizeof(expected)) == 0 && memchr(d->job, 0, sizeof(d->job)) &&
           memchr(d->text, 0, sizeof(d->text));
}
