/* SPDX-License-Identifier: MIT
 *
 * fit.c - looks for the parameters with which simulated times are nearest to measured ones.
 *
 * Unknown are the logarithms of the parameters, and residuals are the logarithms of simulated by measured times: so rates and latencies of all sizes count
 * alike, all stay above 0, and a time that is twice or half of what was measured is equally far off. Levenberg-Marquardt with derivatives by differences, which
 * needs about 2 p + 5 simulations of everything a round: p is at most PARAMETERS_MAX, and a dozen rounds do. A library would bring no more than these
 * hundred lines: what matters is which parameters to leave alone, and that comes out of the same derivatives.
 *
 * Simulated times have kinks (a slice more or less, a path that becomes the critical one). Differences are taken over 4 % to both sides, which looks past the
 * small ones; steps are tried with four dampings at once, and only one that is better is taken. Residuals beyond 10 % count by their
 * size and not by its square (Huber), so that one disturbed measurement does not pull all others. Where a time says how far its own rounds are apart, its residual
 * counts in what it and the model together may be off by: what rounds disagree about by 40 % says little of a parameter, wherever else it is.
 *
 * Which parameters are fitted is decided anew in each round: those that no time depends on are left, and of those that times depend on in the same way the one
 * with the most influence is taken (Gram-Schmidt with pivots). So hand-over and launch, of which only the sum shows, do not run away in opposite
 * directions.
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/simulate/fit.h"

#define ROUNDS 30
#define HUBER 0.1
#define DIFFERENCE 0.04 /* to each side, of a logarithm */
#define SEEN 0.01       /* the least influence: doubling it changes some time by 0.7 % */
#define APART 0.03      /* of a parameter's influence, what others may not explain */
#define STEP_MOST 0.7   /* of a logarithm: a factor of two */
#define MODEL_OFF 0.05  /* what a model is off by, about, where what was measured is certain */
#define GAIN 1e-4       /* less is the end */
#define DAMPINGS 4
#define PRIOR 0.0001 /* what it costs that a parameter is e times what is described: as much as one time that is off by 1 % */
#define START_APART 1.4 /* of a logarithm: a factor of four */
#define START_GAIN 0.01 /* less is no reason to leave what the description's own start has found */

struct search {
    struct fit *f;
    double x[PARAMETERS_MAX]; /* logarithms */
    double *times, *residuals, *weights,
        *jacobian; /* of the first: [points][n]; jacobian: [p][n]. This and residuals are in what each is certain to */
    double damping, cost;
};

static double huber(double r)
{
    return fabs(r) <= HUBER ? r * r / 2 : HUBER * (fabs(r) - HUBER / 2);
}

/* How certain a time is: 1, or less where its rounds are apart. Half of what their quartiles are apart by is about what their middle is off by. */
static double certainty(const struct fit *f, int i)
{
    const double off = f->spread[i] > 0 ? f->spread[i] / 2 / MODEL_OFF : 0;

    return 1 / sqrt(1 + off * off);
}

static double cost_of(const struct fit *f, const double *times)
{
    double sum = 0;

    for (int i = 0; i < f->n; i++)
        sum += huber(certainty(f, i) * log(times[i] / f->seconds[i]));
    return sum;
}

static double within(const struct fit_parameter *q, double x)
{
    const double middle = log(q->value), reach = log(q->reach);

    return fmin(fmax(x, middle - reach), middle + reach);
}

static int simulate(const struct search *s, const double logs[][PARAMETERS_MAX], int many)
{
    double points[(2 * PARAMETERS_MAX + 1) * PARAMETERS_MAX];

    for (int k = 0; k < many; k++)
        for (int j = 0; j < s->f->p; j++)
            points[k * s->f->p + j] = exp(logs[k][j]);
    return s->f->simulate(s->f->context, points, many, s->times);
}

/* What the parameters' distance from what is described costs: so what times hardly show stays there. */
static double prior_of(const struct fit *f, const double x[])
{
    double sum = 0;

    for (int j = 0; j < f->p; j++)
        sum += PRIOR * (x[j] - log(f->q[j].value)) * (x[j] - log(f->q[j].value)) / 2;
    return sum;
}

/* Residuals, weights and derivatives at x. */
static int derive(struct search *s)
{
    struct fit *f = s->f;
    double logs[2 * PARAMETERS_MAX + 1][PARAMETERS_MAX];

    for (int k = 0; k <= 2 * f->p; k++) {
        memcpy(logs[k], s->x, sizeof(s->x));
        if (k > 0)
            logs[k][(k - 1) / 2] += k % 2 ? DIFFERENCE : -DIFFERENCE;
    }
    const int status = simulate(s, logs, 2 * f->p + 1);
    if (status)
        return status;
    s->cost = cost_of(f, s->times) + prior_of(f, s->x);
    for (int i = 0; i < f->n; i++) {
        s->residuals[i] = certainty(f, i) * log(s->times[i] / f->seconds[i]);
        s->weights[i] = fabs(s->residuals[i]) <= HUBER ? 1 : sqrt(HUBER / fabs(s->residuals[i]));
    }
    for (int j = 0; j < f->p; j++) {
        const double *up = s->times + (2 * j + 1) * f->n, *down = up + f->n;
        for (int i = 0; i < f->n; i++)
            s->jacobian[j * f->n + i] = certainty(f, i) * log(up[i] / down[i]) / (2 * DIFFERENCE);
    }
    return 0;
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Takes what of a column the column `by`, of length 1, explains. Returns how much that is. */
static double project(double *column, const double *by, int n)
{
    const double part = dot(column, by, n);

    for (int i = 0; i < n; i++)
        column[i] -= part * by[i];
    return fabs(part);
}

/* Decides what is fitted at x: sets the states. free: [p], numbers of those that are. Returns how many, or -ENOMEM. */
static int choose(struct search *s, int free_ones[])
{
    struct fit *f = s->f;
    double *rest = malloc((size_t)(f->p * f->n + 1) * sizeof(*rest)), whole[PARAMETERS_MAX], most[PARAMETERS_MAX] = {0};
    int n = 0;

    if (!rest)
        return -ENOMEM;
    memcpy(rest, s->jacobian, (size_t)(f->p * f->n) * sizeof(*rest));
    for (int j = 0; j < f->p; j++) {
        double seen = 0;
        for (int i = 0; i < f->n; i++)
            seen = fmax(seen, fabs(rest[j * f->n + i]));
        whole[j] = sqrt(dot(rest + j * f->n, rest + j * f->n, f->n));
        f->q[j].state = f->q[j].hold ? FIT_HELD : seen < SEEN ? FIT_UNSEEN : FIT_SHADOWED;
    }
    for (;;) {
        int best = -1;
        double longest = 0;
        for (int j = 0; j < f->p; j++) {
            const double length = sqrt(dot(rest + j * f->n, rest + j * f->n, f->n));
            if (f->q[j].state == FIT_SHADOWED && length > APART * whole[j] && length > longest) {
                best = j;
                longest = length;
            }
        }
        if (best < 0)
            break;
        f->q[best].state = FIT_FITTED;
        free_ones[n++] = best;
        for (int i = 0; i < f->n; i++)
            rest[best * f->n + i] /= longest;
        for (int j = 0; j < f->p; j++) {
            if (f->q[j].state != FIT_SHADOWED)
                continue;
            const double part = project(rest + j * f->n, rest + best * f->n, f->n);
            if (part > most[j]) {
                most[j] = part;
                f->q[j].shadow = best;
            }
        }
    }
    free(rest);
    return n;
}

/* The normal equations of the parameters that are fitted: a, and b. */
static void equations(const struct search *s, const int free_ones[], int n, double a[][PARAMETERS_MAX], double b[])
{
    const struct fit *f = s->f;

    for (int j = 0; j < n; j++) {
        const double *row = s->jacobian + free_ones[j] * f->n;
        b[j] = -PRIOR * (s->x[free_ones[j]] - log(f->q[free_ones[j]].value));
        for (int i = 0; i < f->n; i++)
            b[j] -= row[i] * s->residuals[i] * s->weights[i] * s->weights[i];
        for (int k = 0; k <= j; k++) {
            const double *other = s->jacobian + free_ones[k] * f->n;
            double sum = 0;
            for (int i = 0; i < f->n; i++)
                sum += row[i] * other[i] * s->weights[i] * s->weights[i];
            a[j][k] = a[k][j] = sum + (j == k ? PRIOR : 0);
        }
    }
}

/* Cholesky's factor of a, whose diagonal grows by `damping` of itself, into l. False: it has none. */
static bool factor(double a[][PARAMETERS_MAX], int n, double damping, double l[][PARAMETERS_MAX])
{
    for (int j = 0; j < n; j++)
        for (int k = 0; k <= j; k++) {
            double sum = a[j][k] * (j == k ? 1 + damping : 1);
            for (int i = 0; i < k; i++)
                sum -= l[j][i] * l[k][i];
            if (j == k && !(sum > DBL_MIN))
                return false;
            l[j][k] = j == k ? sqrt(sum) : sum / l[k][k];
        }
    return true;
}

static void solve(double l[][PARAMETERS_MAX], int n, const double b[], double out[])
{
    for (int j = 0; j < n; j++) {
        out[j] = b[j];
        for (int i = 0; i < j; i++)
            out[j] -= l[j][i] * out[i];
        out[j] /= l[j][j];
    }
    for (int j = n; j-- > 0;) {
        for (int i = j + 1; i < n; i++)
            out[j] -= l[i][j] * out[i];
        out[j] /= l[j][j];
    }
}

/* Tries a step with several dampings. *gain: how much less the cost is, as a part of it; 0: no step is better, and x stays. */
static int step(struct search *s, const int free_ones[], int n, double *gain)
{
    struct fit *f = s->f;
    double a[PARAMETERS_MAX][PARAMETERS_MAX], l[PARAMETERS_MAX][PARAMETERS_MAX], b[PARAMETERS_MAX], d[PARAMETERS_MAX];
    double logs[DAMPINGS][PARAMETERS_MAX], dampings[DAMPINGS];
    int many = 0, best = -1;

    equations(s, free_ones, n, a, b);
    for (int k = 0; k < DAMPINGS; k++) {
        const double damping = s->damping * pow(10, k - 1);
        if (!factor(a, n, damping, l))
            continue;
        solve(l, n, b, d);
        memcpy(logs[many], s->x, sizeof(s->x));
        for (int j = 0; j < n; j++)
            logs[many][free_ones[j]] =
                within(&f->q[free_ones[j]], s->x[free_ones[j]] + fmin(fmax(d[j], -STEP_MOST), STEP_MOST));
        dampings[many++] = damping;
    }
    *gain = 0;
    const int status = many ? simulate(s, logs, many) : 0;
    for (int k = 0; k < many && !status; k++) {
        const double cost = cost_of(f, s->times + k * f->n) + prior_of(f, logs[k]);
        if (cost < s->cost * (1 - *gain)) {
            *gain = 1 - cost / s->cost;
            best = k;
        }
    }
    if (best >= 0) {
        memcpy(s->x, logs[best], sizeof(s->x));
        s->damping = fmax(dampings[best], 1e-6);
    } else {
        s->damping *= 1000;
    }
    return status;
}

/* Standard errors, of what residuals remain. */
static void errors_set(const struct search *s, const int free_ones[], int n)
{
    double a[PARAMETERS_MAX][PARAMETERS_MAX], l[PARAMETERS_MAX][PARAMETERS_MAX], b[PARAMETERS_MAX], d[PARAMETERS_MAX], sum = 0;
    const struct fit *f = s->f;

    for (int i = 0; i < f->n; i++)
        sum += s->weights[i] * s->weights[i] * s->residuals[i] * s->residuals[i];
    equations(s, free_ones, n, a, b);
    const bool is_well = factor(a, n, 0, l);
    for (int j = 0; j < n; j++) {
        memset(b, 0, sizeof(b));
        b[j] = 1;
        if (is_well)
            solve(l, n, b, d);
        f->q[free_ones[j]].error = is_well ? sqrt(d[j] * sum / (f->n - n)) : INFINITY;
    }
}

/* Puts back to what is described whatever no time depends on, unless times depend on it there. *n: as of choose(). */
static int unseen_return(struct search *s, int free_ones[], int *n)
{
    const struct fit *f = s->f;
    const double cost = s->cost;
    double was[PARAMETERS_MAX];
    bool moves = false;

    memcpy(was, s->x, sizeof(was));
    for (int j = 0; j < f->p; j++)
        if (f->q[j].state == FIT_UNSEEN && s->x[j] != log(f->q[j].value)) {
            s->x[j] = log(f->q[j].value);
            moves = true;
        }
    for (int again = 0; moves && again < 2; again++) {
        const int status = derive(s);
        if (status)
            return status;
        if ((*n = choose(s, free_ones)) < 0)
            return *n;
        if (s->cost <= cost * (1 + GAIN))
            break;
        memcpy(s->x, was, sizeof(was));
    }
    return 0;
}

static int search(struct search *s)
{
    struct fit *f = s->f;
    int free_ones[PARAMETERS_MAX], n = 0, status;
    double gain = 1;

    for (f->rounds = 0;; f->rounds++) {
        if ((status = derive(s)))
            return status;
        n = choose(s, free_ones);
        if (n < 0)
            return n;
        if (n >= f->n) {
            f->rounds = n;
            return -ERANGE;
        }
        if (f->rounds == ROUNDS || n == 0 || (gain < GAIN && gain > 0) || s->damping > 1e6)
            break;
        do
            status = step(s, free_ones, n, &gain);
        while (!status && gain <= 0 && s->damping <= 1e6);
        if (status)
            return status;
    }
    if ((status = unseen_return(s, free_ones, &n)))
        return status;
    errors_set(s, free_ones, n);
    for (int j = 0; j < f->p; j++)
        f->q[j].fitted = exp(s->x[j]);
    return 0;
}

/* From the description, and from two others: what is bound by memory shows nothing of the rates of computing and the other way round, so a search that begins on
 * the wrong side stays there. */
static int searches(struct search *s)
{
    struct fit *f = s->f;
    struct fit_parameter best[PARAMETERS_MAX];
    double cost = INFINITY;
    int rounds = 0;

    for (int start = FIT_TIMES; start < FIT_GROUPS; start++) { /* FIT_TIMES: as described */
        for (int j = 0; j < f->p; j++) {
            const bool moves = start != FIT_TIMES && f->q[j].group == (enum fit_group)start && !f->q[j].hold;
            s->x[j] = within(&f->q[j], log(f->q[j].value) + (moves ? START_APART : 0));
        }
        s->damping = 1e-3;
        const int status = search(s);
        rounds += f->rounds;
        if (status)
            return status;
        if (s->cost < cost * (1 - START_GAIN)) {
            cost = s->cost;
            memcpy(best, f->q, (size_t)f->p * sizeof(best[0]));
        }
    }
    memcpy(f->q, best, (size_t)f->p * sizeof(best[0]));
    f->rounds = rounds;
    return 0;
}

int fit_do(struct fit *f)
{
    const size_t n = (size_t)f->n, p = (size_t)f->p, points = 2 * p + 1 > DAMPINGS ? 2 * p + 1 : DAMPINGS;
    struct search s = {.f = f};
    double *room = calloc(n * (points + 2 + p), sizeof(*room));
    int status = -ENOMEM;

    if (room) {
        s.times = room;
        s.residuals = s.times + points * n;
        s.weights = s.residuals + n;
        s.jacobian = s.weights + n;
        status = searches(&s);
    }
    free(room);
    return status;
}
