/* SPDX-License-Identifier: MIT
 *
 * picture.c - draws simulations as SVG, in the colours of trace.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/simulate/simulate.h"

#define WIDTH 1000.0
#define LEFT 96.0
#define RIGHT 190.0
#define TOP 76.0
#define PLOT (WIDTH - LEFT - RIGHT)
#define NCOLOURS 8
#define LANES_MAX 48
#define LINK_HEIGHT 90.0
#define LEGEND_END (TOP + 20.0 * SLICE_KINDS)
#define WAITS_COLOUR "#eef0f2"

static const char *const colours[NCOLOURS] = {"#2f6fb0", "#e0862f", "#1b9e77", "#7b5ea7",
                                              "#e7298a", "#a6761d", "#66a61e", "#7a7a7a"};
static const char *const kind_colours[SLICE_KINDS] = {
    [SLICE_COMPUTE_PUT] = "#2f6fb0", [SLICE_COMPUTE] = "#7fb2e5", [SLICE_PUT] = "#e0862f",     [SLICE_REDUCE] = "#7b5ea7",
    [SLICE_REDUCE_NODE] = "#ad9bc9", [SLICE_WAIT] = "#d9dde1",    [SLICE_FORWARD] = "#1b9e77", [SLICE_ROWS] = "#a6761d",
};

static void text_put(FILE *out, const char *text)
{
    for (; *text; text++)
        (void)fputs(*text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : (char[]){*text, '\0'}, out);
}

static FILE *picture_open(const char *path, double height, const char *title, const char *sub)
{
    FILE *out = fopen(path, "we");

    if (!out)
        return NULL;
    (void)fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"sans-serif\">\n"
        "<style>.t{font-size:20px;font-weight:600;fill:#1d2733}.s{font-size:13px;fill:#5b6672}.l{font-size:12px;fill:#3a4450}"
        "line.g{stroke:#e4e8ec}</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<text x=\"24\" y=\"34\" "
        "class=\"t\">",
        WIDTH, height, WIDTH, height);
    text_put(out, title);
    (void)fputs("</text>\n<text x=\"24\" y=\"56\" class=\"s\">", out);
    text_put(out, sub);
    (void)fputs("</text>\n", out);
    return out;
}

static int picture_close(FILE *out)
{
    const bool failed = fputs("</svg>\n", out) < 0 || ferror(out);

    return fclose(out) || failed ? -EIO : 0;
}

/* ---- time against ranks, both axes logarithmic ---- */

struct axes {
    double x0, x1, y0, y1, height;
};

static double place(double value, double from, double to)
{
    return to > from ? (log(value) - log(from)) / (log(to) - log(from)) : 0.5;
}

static double x_of(const struct axes *a, double ranks)
{
    return LEFT + PLOT * place(ranks, a->x0, a->x1);
}

static double y_of(const struct axes *a, double seconds)
{
    return TOP + a->height * (1 - place(seconds, a->y0, a->y1));
}

static void axes_draw(FILE *out, const struct axes *a, const struct outcome rows[], int n)
{
    static const int ticks[] = {1, 2, 5}; /* of each decade */
    const double most = a->y1 * 1.001;
    const int first = (int)lround(log10(a->y0)), last = (int)floor(log10(most));

    for (int decade = first; decade <= last; decade++)
        for (size_t k = 0; k < sizeof(ticks) / sizeof(ticks[0]); k++) {
            const double seconds = ticks[k] * pow(10, decade), y = y_of(a, seconds);
            if (seconds > most)
                continue;
            (void)fprintf(out, "<line class=\"g\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", LEFT, y, LEFT + PLOT, y);
            (void)fprintf(out, "<text class=\"l\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 8, y + 4,
                          format_ns(seconds * 1e9).text);
        }
    for (int i = 0, ranks = 0; i < n; i++) {
        if (!rows[i].done || rows[i].ranks == ranks)
            continue;
        ranks = rows[i].ranks;
        (void)fprintf(out, "<text class=\"l\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>\n", x_of(a, ranks),
                      TOP + a->height + 20, ranks);
    }
    (void)fprintf(out, "<text class=\"s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">ranks</text>\n", LEFT + PLOT / 2,
                  TOP + a->height + 42);
}

static bool same_line(const struct variant *a, const struct variant *b)
{
    return a->schedule == b->schedule && a->route == b->route && a->slice_rows == b->slice_rows &&
           a->slice_cols == b->slice_cols;
}

int picture_times(const char *path, const struct description *d, const struct outcome rows[], int n)
{
    struct axes a = {.x0 = INFINITY, .y0 = INFINITY, .height = 380};
    FILE *out = picture_open(path, TOP + a.height + 64, *d->name ? d->name : "simulation", "simulated time of the workload");
    int lines = 0;

    if (!out)
        return -errno;
    for (int i = 0; i < n; i++)
        if (rows[i].done && rows[i].seconds > 0) {
            a.x0 = fmin(a.x0, rows[i].ranks);
            a.x1 = fmax(a.x1, rows[i].ranks);
            a.y0 = fmin(a.y0, rows[i].seconds);
            a.y1 = fmax(a.y1, rows[i].seconds);
        }
    if (a.x1 > 0) {
        a.y0 = pow(10, floor(log10(a.y0)));
        a.y1 *= 1.3;
        axes_draw(out, &a, rows, n);
    }
    for (int i = 0; i < n; i++) {
        const char *colour = colours[lines % NCOLOURS];
        bool seen = !rows[i].done;
        struct words what;
        for (int k = 0; k < i && !seen; k++)
            seen = rows[k].done && same_line(&rows[k].variant, &rows[i].variant);
        if (seen)
            continue;
        (void)fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\" points=\"", colour);
        for (int k = i; k < n; k++)
            if (rows[k].done && same_line(&rows[k].variant, &rows[i].variant))
                (void)fprintf(out, "%.1f,%.1f ", x_of(&a, rows[k].ranks), y_of(&a, rows[k].seconds));
        (void)fputs("\"/>\n", out);
        for (int k = i; k < n; k++)
            if (rows[k].done && same_line(&rows[k].variant, &rows[i].variant))
                (void)fprintf(
                    out, "<circle r=\"3.5\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"><title>%d ranks: %s</title></circle>\n", colour,
                    x_of(&a, rows[k].ranks), y_of(&a, rows[k].seconds), rows[k].ranks, format_ns(rows[k].seconds * 1e9).text);
        variant_text(&rows[i].variant, &what);
        (void)fprintf(
            out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"4\" fill=\"%s\"/><text class=\"l\" x=\"%.1f\" y=\"%.1f\">",
            LEFT + PLOT + 16, TOP + 8 + 20.0 * lines, colour, LEFT + PLOT + 36, TOP + 14 + 20.0 * lines);
        text_put(out, what.text);
        (void)fputs("</text>\n", out);
        lines++;
    }
    return picture_close(out);
}

/* ---- a rank's timeline ---- */

static void spans_draw(FILE *out, const struct sim_span spans[], size_t n, double until, double lane)
{
    for (size_t i = 0; i < n; i++) {
        const struct sim_span *s = &spans[i];
        const double x = LEFT + PLOT * s->begin_s / until, wide = PLOT * (s->end_s - s->begin_s) / until,
                     y = TOP + lane * s->workgroup;
        if (s->workgroup >= LANES_MAX)
            continue;
        if (s->begin_s > s->wait_s)
            (void)fprintf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>",
                          LEFT + PLOT * s->wait_s / until, y, PLOT * (s->begin_s - s->wait_s) / until, lane - 1, WAITS_COLOUR);
        if (s->kind != SLICE_WAIT && s->kind < SLICE_KINDS)
            (void)fprintf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y,
                          fmax(wide, 0.3), lane - 1, kind_colours[s->kind] ? kind_colours[s->kind] : "#9aa3ad");
    }
}

static void rates_draw(FILE *out, const struct sim_rate rates[], size_t n, double until, double y, double most)
{
    double before = 0;

    (void)fprintf(out, "<path fill=\"#f3c79b\" stroke=\"#e0862f\" d=\"M%.1f %.1f", LEFT, y + LINK_HEIGHT);
    for (size_t i = 0; i < n; i++) {
        const double x = LEFT + PLOT * rates[i].at_s / until;
        if (i + 1 < n && (rates[i + 1].at_s - rates[i].at_s) * PLOT / until < 0.05)
            continue; /* narrower than can be seen */
        (void)fprintf(out, "L%.2f %.2f", x, y + LINK_HEIGHT * (1 - before / most));
        before = rates[i].bytes_s;
        (void)fprintf(out, "L%.2f %.2f", x, y + LINK_HEIGHT * (1 - before / most));
    }
    (void)fprintf(out, "L%.1f %.1fZ\"/>\n", LEFT + PLOT, y + LINK_HEIGHT);
}

/* The colours of what occurs. */
static void kinds_draw(FILE *out, const struct sim_span spans[], size_t n)
{
    bool occurs[SLICE_KINDS] = {false};
    double y = TOP;

    for (size_t i = 0; i < n; i++)
        if (spans[i].kind < SLICE_KINDS && spans[i].workgroup < LANES_MAX)
            occurs[spans[i].kind] = true;
    for (int kind = SLICE_COMPUTE_PUT; kind < SLICE_KINDS; kind++) {
        if (!kind_colours[kind] || kind == SLICE_WAIT || !occurs[kind])
            continue;
        (void)fprintf(out,
                      "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/><text class=\"l\" x=\"%.1f\" "
                      "y=\"%.1f\">%s</text>\n",
                      LEFT + PLOT + 16, y, kind_colours[kind], LEFT + PLOT + 34, y + 10,
                      slice_kind_name((enum slice_kind)kind));
        y += 20;
    }
    (void)fprintf(
        out,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/><text class=\"l\" x=\"%.1f\" y=\"%.1f\">waits for "
        "flags</text>\n",
        LEFT + PLOT + 16, y, WAITS_COLOUR, LEFT + PLOT + 34, y + 10);
}

int picture_timeline(const char *path, const struct description *d, const struct outcome *row, const struct sim *s, int rank)
{
    size_t nspans, nrates;
    const struct sim_span *spans = sim_spans(s, &nspans);
    const struct sim_rate *rates = sim_rates(s, &nrates);
    uint32_t lanes = 1;
    double most = 1;
    struct words what;

    for (size_t i = 0; i < nspans; i++)
        lanes = spans[i].workgroup >= lanes ? spans[i].workgroup + 1 : lanes;
    for (size_t i = 0; i < nrates; i++)
        most = fmax(most, rates[i].bytes_s);
    const double lane = lanes > 24 ? 8 : 14, shown = lanes < LANES_MAX ? lanes : LANES_MAX, link_y = TOP + lane * shown + 34;
    const double end_y = nrates ? link_y + LINK_HEIGHT : TOP + lane * shown;
    variant_text(&row->variant, &what);
    FILE *out =
        picture_open(path, fmax(end_y + 60, LEGEND_END), *d->name ? d->name : "simulation",
                     words("rank %d of %d, %s: %s; %u workgroups%s", rank, row->ranks, what.text,
                           format_ns(row->seconds * 1e9).text, lanes, lanes > LANES_MAX ? ", the first of which are drawn" : "")
                         .text);
    if (!out)
        return -errno;
    spans_draw(out, spans, nspans, row->seconds, lane);
    (void)fprintf(out, "<text class=\"l\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">workgroups</text>\n", LEFT - 8, TOP + 12);
    if (nrates)
        (void)fprintf(out, "<text class=\"s\" x=\"%.1f\" y=\"%.1f\">%s: at most %s a second</text>\n", LEFT, link_y - 8,
                      d->machine.nodes > 1 ? "adapter, out of the node" : "link, out of the rank", format_bytes(most).text);
    if (nrates)
        rates_draw(out, rates, nrates, row->seconds, link_y, most);
    for (int i = 0; i <= 4; i++)
        (void)fprintf(out, "<text class=\"l\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", LEFT + PLOT * i / 4,
                      end_y + 20, i ? format_ns(row->seconds * 1e9 * i / 4).text : "0");
    kinds_draw(out, spans, nspans);
    return picture_close(out);
}
