/* SPDX-License-Identifier: MIT */
#include "tests/demo/reference.h"

#include <math.h>
#include <string.h>

/* Rounding once costs up to 2^-11 of an element in f16 and 2^-9 in bf16; allowed is twice that, for what the sum before it
 * lost. f32 results were added up in f32. */
static const double tolerance[] = {[REFERENCE_F32] = 1e-5, [REFERENCE_F16] = 0x1p-10, [REFERENCE_BF16] = 0x1p-8};
static const int significand_bits[] = {[REFERENCE_F32] = 24, [REFERENCE_F16] = 11, [REFERENCE_BF16] = 8};

static double from_fields(unsigned sign, int exponent, int exponent_max, int bias, unsigned fraction, int fraction_bits)
{
    double magnitude;

    if (exponent == exponent_max)
        magnitude = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, 1 - bias - fraction_bits);
    else
        magnitude = ldexp((double)fraction + ldexp(1, fraction_bits), exponent - bias - fraction_bits);
    return sign ? -magnitude : magnitude;
}

double reference_f16(uint16_t bits)
{
    return from_fields(bits >> 15, (bits >> 10) & 31, 31, 15, bits & 1023u, 10);
}

double reference_bf16(uint16_t bits)
{
    return from_fields(bits >> 15, (bits >> 7) & 255, 255, 127, bits & 127u, 7);
}

double reference_round(enum reference_type type, double x)
{
    int exponent;
    double fraction = frexp(x, &exponent);

    return ldexp(nearbyint(ldexp(fraction, significand_bits[type])), exponent - significand_bits[type]);
}

void reference_bag(const float *table, int64_t dim, const int64_t *ids, const float *weights, int64_t count, bool mean,
                   double *out)
{
    for (int64_t d = 0; d < dim; d++)
        out[d] = 0;
    for (int64_t i = 0; i < count; i++) {
        const float *row = table + ids[i] * dim;
        double weight = weights ? (double)weights[i] : 1;
        for (int64_t d = 0; d < dim; d++)
            out[d] += weight * (double)row[d];
    }
    for (int64_t d = 0; d < dim && mean && count > 0; d++)
        out[d] /= (double)count;
}

void reference_mlp(const struct reference_mlp *mlp, const float *x, enum reference_type type, double *inner_state, double *y)
{
    for (int64_t i = 0; i < mlp->inner; i++) {
        double gate = 0, up = 0, h;
        for (int64_t j = 0; j < mlp->hidden; j++) {
            gate += mlp->gate[i * mlp->hidden + j] * (double)x[j];
            up += mlp->up[i * mlp->hidden + j] * (double)x[j];
        }
        gate *= mlp->scale;
        up *= mlp->scale;
        h = gate / (1 + exp(-gate)) * up;
        inner_state[i] = type == REFERENCE_F32 ? h : reference_round(type, h);
    }
    for (int64_t i = 0; i < mlp->hidden; i++) {
        double sum = 0;
        for (int64_t j = 0; j < mlp->inner; j++)
            sum += mlp->down[i * mlp->inner + j] * inner_state[j];
        y[i] = sum * mlp->scale;
    }
}

void reference_row(const int16_t *x, double x_scale, const int16_t *w, double w_scale, int64_t k, int64_t n, double *y)
{
    for (int64_t j = 0; j < n; j++)
        y[j] = 0;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++)
            y[j] += (double)x[i] * w[i * n + j];
    for (int64_t j = 0; j < n; j++)
        y[j] *= x_scale * w_scale;
}

double reference_element(enum reference_type type, const void *data, int64_t i)
{
    const unsigned char *at = (const unsigned char *)data + i * (type == REFERENCE_F32 ? 4 : 2);
    uint16_t half;
    float single;

    if (type == REFERENCE_F32) {
        memcpy(&single, at, sizeof(single));
        return single;
    }
    memcpy(&half, at, sizeof(half));
    return type == REFERENCE_F16 ? reference_f16(half) : reference_bf16(half);
}

int64_t reference_compare(enum reference_type type, const void *got, const double *expected, int64_t count, int64_t *first)
{
    double squares = 0, rms;
    int64_t defined = 0, wrong = 0;

    for (int64_t i = 0; i < count; i++) {
        if (!isnan(expected[i])) {
            squares += expected[i] * expected[i];
            defined++;
        }
    }
    rms = defined ? sqrt(squares / (double)defined) : 0;
    for (int64_t i = 0; i < count; i++) {
        double value = reference_element(type, got, i);
        bool good;
        if (isnan(expected[i]))
            good = isnan(value);
        else
            good = fabs(value - expected[i]) <= tolerance[type] * fmax(fabs(expected[i]), rms);
        if (!good && wrong++ == 0)
            *first = i;
    }
    return wrong;
}
