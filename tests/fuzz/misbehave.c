/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/misbehave.h"

#include "proto/session.h"
#include "tests/fuzz/raw_send.h"

void send_anything(struct client *c, struct input *in)
{
    static const size_t sizes[FCC_MSG_TYPES] = {
#define X(NAME, name, size, fds) [FCC_MSG_##NAME] = (size),
        FCC_MESSAGES(X)
#undef X
    };
    _Alignas(16) unsigned char m[4096] = {0};
    struct fcc_msg header = {.type = (uint16_t)input_below(in, FCC_MSG_TYPES + 3), .id = 0};
    uint32_t how = input_u8(in);
    size_t length = header.type < FCC_MSG_TYPES ? sizes[header.type] : 16;

    length = length < 16 ? 16 : length;
    if (how & 1)
        length = (size_t)(length + input_below(in, 32) - 16);
    if (how & 2)
        length = 16 + input_below(in, sizeof(m) - 16);
    length = length < sizeof(m) ? length : sizeof(m);
    for (size_t i = sizeof(header); i < length && in->left; i++)
        m[i] = i % 4 && !(how & 4) ? 0 : input_u8(in); /* small numbers in each word */
    header.length = how & 8 ? (uint32_t)input_number(in) : (uint32_t)length;
    header.zero = (uint16_t)((how & 0xf0) == 0xf0);
    memcpy(m, &header, sizeof(header));
    raw_send_with(c->sock, m, length, (how & 0x30) == 0x30 ? input_below(in, 16) : 0, in);
}

void scribble(struct client *c, struct input *in)
{
    uint32_t slot = input_below(in, FCC_SLOTS), what = input_below(in, 9);
    uint64_t value = (uint64_t)input_number(in);
    struct fcc_session_memory *memory = c->memory;

    c->slots_awaited[slot] = 0;
    if (what < 2 || what > 7)
        c->ring_spoilt = true;
    for (uint32_t i = 0; c->ring_spoilt && i < FCC_SLOTS; i++)
        c->slots_awaited[i] = 0;
    switch (what) {
    case 0:
        atomic_store(&memory->head, c->head += value);
        break;
    case 1:
        atomic_store(&memory->tail, value);
        break;
    case 2:
        atomic_store(&memory->slot[slot].state, (uint32_t)value);
        break;
    case 3:
        atomic_store(&memory->slot[slot].stream_started, (uint32_t)value);
        break;
    case 4:
        atomic_store(&memory->slot[slot].stream_finished, (uint32_t)value);
        break;
    case 5:
        atomic_store(&memory->status[value % FCC_STATUS_WORDS], (int32_t)slot);
        break;
    case 6:
        atomic_store(&memory->bindings[value % FCC_BINDINGS].ended, value);
        break;
    case 7:
        atomic_store(&memory->bindings[value % FCC_BINDINGS].begun, slot);
        break;
    default:
        memory->data[(c->head + value) % FCC_RING_BYTES] ^= (unsigned char)slot;
        break;
    }
}

void scribble_buffer(struct client *c, struct input *in)
{
    const struct client_buffer *b = &c->buffers[input_below(in, BUFFERS)];
    uint32_t at = input_below(in, 0x10000), n = input_u8(in), step = input_below(in, 9);

    for (uint32_t i = 0; b->at && i < n && at + i * 4 + 4 <= b->bytes; i++) {
        uint32_t value = step == 8 ? (uint32_t)input_number(in) : i * step;
        memcpy(b->at + at + (size_t)i * 4, &value, sizeof(value));
    }
}
