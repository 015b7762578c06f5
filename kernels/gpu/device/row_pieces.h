/* SPDX-License-Identifier: MIT
 *
 * row_pieces.h - neighbouring elements of a row (whole_rows.h), as a thread loads, rounds and stores them.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_ROW_PIECES_H
#define FCC_KERNELS_GPU_DEVICE_ROW_PIECES_H

#include "kernels/gpu/device/vector.h"
#include "kernels/gpu/platform.h"

/* Neighbouring elements, as many as are moved at a time, in words of 4 bytes. A piece of 12 bytes is what a packet has (exchange/rings_rows.h). */
template <typename T, int BYTES> struct gpu_piece {
    enum { LENGTH = BYTES / sizeof(T), WORDS = BYTES / 4, PER_WORD = 4 / sizeof(T), ALIGN = BYTES % 16 ? 4 : 16 };
    struct alignas(ALIGN) moved {
        uint32_t words[WORDS];
    };
    struct word {
        T at[PER_WORD];
    };
};

/* The first `valid` of a piece's elements; the others are 0. ALIGNED: it lies at a multiple of ALIGN, and has whole words; of 16 bytes, all. */
template <typename P, bool ALIGNED, typename T> GPU_DEVICE typename P::moved gpu_piece_load(const T *from, int64_t valid)
{
    typename P::moved piece;

    if constexpr (ALIGNED && P::ALIGN == 16) {
        piece = *(const typename P::moved *)from;
    } else if constexpr (ALIGNED) {
#pragma unroll
        for (int i = 0; i < P::WORDS; i++)
            piece.words[i] = i * P::PER_WORD < valid ? ((const uint32_t *)from)[i] : 0;
    } else {
#pragma unroll
        for (int i = 0; i < P::WORDS; i++) {
            typename P::word word = {};
#pragma unroll
            for (int j = 0; j < P::PER_WORD; j++)
                if (i * P::PER_WORD + j < valid)
                    word.at[j] = from[i * P::PER_WORD + j];
            __builtin_memcpy(&piece.words[i], &word, sizeof(word));
        }
    }
    return piece;
}

template <typename P> GPU_DEVICE void gpu_piece_to_f32(float (&out)[P::LENGTH], const typename P::moved &piece)
{
#pragma unroll
    for (int i = 0; i < P::WORDS; i++) {
        typename P::word word;
        __builtin_memcpy(&word, &piece.words[i], sizeof(word));
#pragma unroll
        for (int j = 0; j < P::PER_WORD; j++)
            out[i * P::PER_WORD + j] = gpu_to_f32(word.at[j]);
    }
}

/* As many f32 sums. */
template <typename P, bool ALIGNED>
GPU_DEVICE void gpu_piece_load_wide(float (&out)[P::LENGTH], const float *from, int64_t valid)
{
    struct alignas(16) four {
        float at[4];
    };

    if constexpr (ALIGNED && P::ALIGN == 16) {
#pragma unroll
        for (int i = 0; i < P::LENGTH; i += 4) {
            const struct four some = *(const struct four *)(from + i);
#pragma unroll
            for (int j = 0; j < 4; j++)
                out[i + j] = some.at[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < P::LENGTH; i++)
            out[i] = i < valid ? from[i] : 0.0f;
    }
}

/* Rounds a piece's numbers, which become what was stored. */
template <typename P, bool ALIGNED, typename T> GPU_DEVICE void gpu_piece_round(T *to, float (&v)[P::LENGTH], int64_t valid)
{
    typename P::moved piece;

#pragma unroll
    for (int i = 0; i < P::WORDS; i++) {
        typename P::word word;
#pragma unroll
        for (int j = 0; j < P::PER_WORD; j++) {
            const int at = i * P::PER_WORD + j;
            gpu_from_f32(&word.at[j], v[at]);
            v[at] = gpu_to_f32(word.at[j]);
            if (!ALIGNED && at < valid)
                to[at] = word.at[j];
        }
        __builtin_memcpy(&piece.words[i], &word, sizeof(word));
        if (ALIGNED && P::ALIGN != 16 && i * P::PER_WORD < valid)
            ((uint32_t *)to)[i] = piece.words[i];
    }
    if constexpr (ALIGNED && P::ALIGN == 16)
        *(typename P::moved *)to = piece;
}

#endif
