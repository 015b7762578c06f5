/* SPDX-License-Identifier: MIT
 *
 * peer_check.c - checks the form of messages from other nodes' workers: length, text and status. Whether the contents are valid is checked
 * where the communicator is known.
 */
#include <errno.h>
#include <string.h>

#include "daemon/worker/nodes/peer.h"

const char *peer_type_name(unsigned type)
{
    static const char *const names[PEER_TYPES] = {
        [PEER_PING] = "ping",     [PEER_JOIN] = "join",     [PEER_JOINED] = "joined", [PEER_REFUSE] = "refuse",
        [PEER_DENY] = "deny",     [PEER_FORMED] = "formed", [PEER_HERE] = "here",     [PEER_READY] = "ready",
        [PEER_GO] = "go",         [PEER_SUBMIT] = "submit", [PEER_MEMORY] = "memory", [PEER_FREE] = "free",
        [PEER_STAGED] = "staged", [PEER_FAIL] = "fail",     [PEER_ABORT] = "abort",   [PEER_LEAVE] = "leave",
        [PEER_RESULT] = "result"};

    return type < PEER_TYPES && names[type] ? names[type] : "unknown";
}

static size_t least_bytes(unsigned type)
{
    static const size_t bytes[PEER_TYPES] = {
        [PEER_JOIN] = sizeof(struct peer_join),     [PEER_JOINED] = sizeof(struct peer_joined),
        [PEER_REFUSE] = sizeof(struct peer_refuse), [PEER_FORMED] = sizeof(struct peer_formed),
        [PEER_HERE] = sizeof(struct peer_here),     [PEER_READY] = sizeof(struct peer_msg),
        [PEER_GO] = sizeof(struct peer_msg),        [PEER_SUBMIT] = sizeof(struct peer_submit),
        [PEER_MEMORY] = sizeof(struct peer_memory), [PEER_FREE] = sizeof(struct peer_free),
        [PEER_STAGED] = sizeof(struct peer_turn),   [PEER_FAIL] = sizeof(struct peer_turn),
        [PEER_ABORT] = sizeof(struct peer_turn),    [PEER_LEAVE] = sizeof(struct peer_turn),
        [PEER_RESULT] = sizeof(struct peer_result), [PEER_DENY] = sizeof(struct peer_deny)};

    return type < PEER_TYPES ? bytes[type] : 0;
}

/* A message's text, or NULL if its type has none; and its status, or 0. */
static const char *text_of(const struct peer_msg *m, int32_t *status)
{
    *status = 0;
    switch (m->type) {
    case PEER_REFUSE:
        *status = ((const struct peer_refuse *)m)->status;
        return ((const struct peer_refuse *)m)->text;
    case PEER_DENY:
        *status = ((const struct peer_deny *)m)->status;
        return ((const struct peer_deny *)m)->text;
    case PEER_SUBMIT:
        *status = ((const struct peer_submit *)m)->request.status;
        return ((const struct peer_submit *)m)->request.text;
    case PEER_MEMORY:
        *status = ((const struct peer_memory *)m)->status;
        return ((const struct peer_memory *)m)->text;
    case PEER_FAIL:
    case PEER_ABORT:
    case PEER_LEAVE:
        *status = ((const struct peer_turn *)m)->status;
        return ((const struct peer_turn *)m)->text;
    default:
        return NULL;
    }
}

int peer_message_check(const struct peer_msg *m, struct error *e)
{
    size_t least = least_bytes(m->type);
    const char *text;
    int32_t status;

    if (!least || m->length < least || (m->length != least && m->type != PEER_SUBMIT))
        return error_set(e, -EPROTO, "a message of type %u and %u bytes: there is no such message", m->type, m->length);
    text = text_of(m, &status);
    if (text && !memchr(text, '\0', FCC_TEXT_MAX))
        return error_set(e, -EPROTO, "%s: a text without an end", peer_type_name(m->type));
    if (status > 0 || status < -STATUS_LAST)
        return error_set(e, -EPROTO, "%s: status %d: allowed are 0 and negative errno values", peer_type_name(m->type), status);
    return 0;
}
