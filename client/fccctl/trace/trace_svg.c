/* SPDX-License-Identifier: MIT
 *
 * trace_svg.c - draws a trace as SVG. Time runs to the right. Each workgroup has a lane; the lanes of a rank are adjacent. A
 * slice's body has the colour of its kind, and the strip below it the colour of its destination rank.
 *
 * Slices narrower than half a pixel are drawn together, so that a lane never has more than two shapes for each pixel.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/field.h"
#include "client/fccctl/trace/trace.h"

#define WIDTH 1280.0
#define LEFT 132.0
#define RIGHT 92.0
#define TOP 104.0
#define BOTTOM 44.0
#define PLOT (WIDTH - LEFT - RIGHT)
#define RANK_GAP 14.0
#define LANES_HEIGHT 560.0 /* height of all lanes together, unless they become too thin */
#define LANE_MAX 26.0
#define LANE_MIN 5.0
#define NARROW 0.5 /* px */
#define NCOLOURS 8
#define DST_NONE (-2)
#define DST_ALL (-1)
#define DST_MIXED (-3)

static const char *const kind_colours[TRACE_KINDS] = {
    [TRACE_COMPUTE_PUT] = "#2f6fb0", [TRACE_COMPUTE] = "#7fb2e5", [TRACE_PUT] = "#e0862f",
    [TRACE_REDUCE] = "#7b5ea7",      [TRACE_WAIT] = "url(#wait)", [TRACE_OTHER] = "#9aa3ad",
};

/* Colours by kind for slices that stay on their own rank. */
static const char *const own_colours[TRACE_KINDS] = {
    [TRACE_COMPUTE_PUT] = "#7ea6ce", [TRACE_COMPUTE] = "#7fb2e5", [TRACE_PUT] = "#ecb47e",
    [TRACE_REDUCE] = "#ad9bc9",      [TRACE_WAIT] = "url(#wait)", [TRACE_OTHER] = "#c1c6cb",
};

/* Colours of destinations: rank modulo NCOLOURS. */
static const char *const rank_colours[NCOLOURS] = {"#1b9e77", "#d95f02", "#e7298a", "#e6ab02",
                                                   "#66c2ff", "#a6761d", "#5e3c99", "#7a7a7a"};

struct picture {
    FILE *out;
    double duration; /* ns */
    double lane;     /* height of a lane with the gap below it */
    double body;     /* height of a slice with its strip */
    double height;
    double y;     /* top of the next lane */
    int64_t rank; /* the rank whose lanes are being drawn */
    int64_t nranks;
    const char *slices_name; /* what a lane's boxes are called */
    const char *lane_name;   /* of the lane that is being drawn, "" if it has only a number */
    struct trace_sum sum;    /* of all ranks */
};

/* One slice, or several narrow ones that are drawn as one. */
struct bar {
    double start, end; /* ns */
    double spent[TRACE_KINDS];
    int64_t dst;
    size_t slices;
    struct json_object *event; /* if slices is 1 */
};

/* Writes text with XML's escapes. */
static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            (void)fputs("&lt;", out);
        else if (*text == '>')
            (void)fputs("&gt;", out);
        else if (*text == '&')
            (void)fputs("&amp;", out);
        else if ((unsigned char)*text >= 0x20)
            (void)fputc(*text, out);
    }
}

static double x_of(const struct picture *p, double ns)
{
    return LEFT + ns / p->duration * PLOT;
}

/* "12.3 µs" */
static struct words time_text(double ns)
{
    struct words plain = format_ns(ns);
    const char *u = strstr(plain.text, "us");

    return u ? words("%.*s\xc2\xb5s", (int)(u - plain.text), plain.text) : plain;
}

/* ---- frame ---- */

static void lanes_measure(struct picture *p, struct json_object *trace)
{
    double lanes = (double)p->sum.workgroups;

    p->lane = fmin(LANE_MAX, fmax(LANE_MIN, LANES_HEIGHT / fmax(lanes, 1)));
    p->body = p->lane > 10 ? p->lane - 4 : p->lane - 1;
    p->height = TOP + p->lane * lanes + RANK_GAP * (double)field_count(trace, "ranks") + BOTTOM;
    p->y = TOP + RANK_GAP / 2;
}

static void title_draw(const struct picture *p, struct json_object *trace)
{
    (void)fprintf(p->out, "<text x=\"24\" y=\"36\" class=\"title\">");
    if (trace_is_rules(trace)) {
        (void)fprintf(p->out, "rules<tspan class=\"sub\" dx=\"12\">%" PRId64 " rank%s \xc2\xb7 communicator %" PRId64,
                      p->nranks, p->nranks == 1 ? "" : "s", field_int(trace, "comm", 0));
        if (field_int(trace, "dropped", 0))
            (void)fprintf(p->out, " \xc2\xb7 %" PRId64 " earlier runs are dropped", field_int(trace, "dropped", 0));
        (void)fprintf(p->out, "</tspan></text>\n");
        return;
    }
    put_text(p->out, field_text(trace, "op"));
    (void)fprintf(p->out, "<tspan class=\"sub\" dx=\"12\">");
    put_text(p->out, field_text(trace, "schedule"));
    (void)fprintf(p->out, " \xc2\xb7 ");
    put_text(p->out, field_text(trace, "dtype"));
    (void)fprintf(p->out,
                  " \xc2\xb7 %" PRId64 " rank%s \xc2\xb7 operator %" PRId64 " of communicator %" PRId64 "</tspan></text>\n",
                  p->nranks, p->nranks == 1 ? "" : "s", field_int(trace, "number", 0), field_int(trace, "comm", 0));
}

static double legend_item(const struct picture *p, double x, const char *colour, double width, double height, const char *label)
{
    (void)fprintf(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" rx=\"1.5\" fill=\"%s\"/>", x,
                  58 + (12 - height), width, height, colour);
    (void)fprintf(p->out, "<text x=\"%.1f\" y=\"69\" class=\"label\">%s</text>\n", x + width + 6, label);
    return x + width + 6 + 7.4 * (double)strlen(label) + 16;
}

static void legend_draw(const struct picture *p)
{
    double x = 24;
    char label[24];

    for (int kind = 0; kind < TRACE_KINDS; kind++) {
        if (p->sum.slices[kind])
            x = legend_item(p, x, kind_colours[kind], 16, 12, trace_kind_names[kind]);
    }
    x += 12;
    (void)fprintf(p->out, "<text x=\"%.1f\" y=\"69\" class=\"faint\">goes to rank</text>\n", x);
    x += 84;
    for (int r = 0; r < p->nranks && r < NCOLOURS; r++) {
        (void)snprintf(label, sizeof(label), p->nranks > NCOLOURS && r == NCOLOURS - 1 ? "%d ..." : "%d", r);
        x = legend_item(p, x, rank_colours[r], 16, 4, label);
    }
    if (p->sum.to_several)
        x = legend_item(p, x, "#22303c", 16, 4, "several");
    (void)fprintf(p->out, "<text x=\"%.1f\" y=\"69\" class=\"faint\">lighter: stays on its own rank</text>\n", x + 12);
}

/* The largest of 1, 2, 5 times a power of ten that gives at least six ticks. */
static double tick_step(double duration)
{
    double step = pow(10, floor(log10(duration / 6)));

    if (duration / (step * 5) >= 6)
        return step * 5;
    return duration / (step * 2) >= 6 ? step * 2 : step;
}

static void axis_draw(const struct picture *p)
{
    double step = tick_step(p->duration), bottom = p->height - BOTTOM;
    double unit = p->duration >= 2e9 ? 1e9 : p->duration >= 2e6 ? 1e6 : p->duration >= 2e3 ? 1e3 : 1;
    const char *name = unit == 1e9 ? "s" : unit == 1e6 ? "ms" : unit == 1e3 ? "\xc2\xb5s" : "ns";
    int decimals = (int)fmax(0, -floor(log10(step / unit) + 1e-9));

    const double rows[] = {TOP - 8, bottom + 18}; /* where the numbers stand: above and below */

    for (int i = 0; i * step <= p->duration * (1 + 1e-9); i++) {
        double t = i * step, x = x_of(p, t);
        (void)fprintf(p->out, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#22303c\" stroke-opacity=\"0.12\"/>", x, TOP, bottom);
        for (int row = 0; row < 2; row++)
            (void)fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"label\" text-anchor=\"middle\">%.*f</text>\n", x,
                          rows[row], decimals, t / unit);
    }
    for (int row = 0; row < 2; row++)
        (void)fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"faint\" text-anchor=\"end\">%s</text>\n", LEFT - 18,
                      rows[1 - row], name);
}

/* ---- slices ---- */

static enum trace_kind bar_kind(const struct bar *bar)
{
    int most = 0;

    for (int kind = 1; kind < TRACE_KINDS; kind++) {
        if (bar->spent[kind] > bar->spent[most])
            most = kind;
    }
    return (enum trace_kind)most;
}

static void bar_title(const struct picture *p, const struct bar *bar)
{
    struct json_object *e = bar->event;

    (void)fprintf(p->out, "<title>");
    if (bar->slices == 1 && e && field_int(e, "run", 0)) {
        put_text(p->out, p->lane_name);
        (void)fprintf(p->out, "%srun %" PRId64 ": %s", *p->lane_name ? ": " : "", field_int(e, "run", 0),
                      trace_kind_names[bar_kind(bar)]);
    } else if (bar->slices == 1 && e)
        (void)fprintf(p->out, "slice %" PRId64 ": %s", field_int(e, "slice", -1), trace_kind_names[bar_kind(bar)]);
    else
        (void)fprintf(p->out, "%zu %s, mostly %s", bar->slices, p->slices_name, trace_kind_names[bar_kind(bar)]);
    if (bar->dst >= 0)
        (void)fprintf(p->out, " to rank %" PRId64, bar->dst);
    else if (bar->dst != DST_NONE)
        (void)fprintf(p->out, bar->dst == DST_ALL ? " to all ranks" : " to several ranks");
    if (bar->slices == 1 && e && bar_kind(bar) != TRACE_WAIT)
        (void)fprintf(p->out, ", %s", trace_tile(e).text);
    (void)fprintf(p->out, "\n%s, from %s</title>", time_text(bar->end - bar->start).text, time_text(bar->start).text);
}

/* `next` is the beginning of the lane's next slice. A gap before it that is too narrow to be seen is filled. */
static void bar_draw(const struct picture *p, const struct bar *bar, double next)
{
    double x = x_of(p, bar->start), width = fmax(NARROW, x_of(p, bar->end) - x), gap = x_of(p, next) - x - width,
           strip = fmax(1.5, floor(p->body / 5));
    enum trace_kind kind = bar_kind(bar);
    double seam = width > 2.5 && bar->slices == 1 ? 0.6 : 0; /* space between neighbours */

    if (gap < NARROW)
        width += fmax(0, gap) + (seam > 0 ? 0 : 0.4); /* extends below the next bar, so that no background shows between them */
    if (bar->dst == DST_NONE)
        strip = 0;
    (void)fprintf(p->out, "<g>");
    bar_title(p, bar);
    (void)fprintf(p->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>", x, p->y, width - seam,
                  p->body - strip, bar->dst == p->rank ? own_colours[kind] : kind_colours[kind]);
    if (strip > 0)
        (void)fprintf(p->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>", x,
                      p->y + p->body - strip, width - seam, strip,
                      bar->dst >= 0         ? rank_colours[bar->dst % NCOLOURS]
                      : bar->dst == DST_ALL ? "#22303c"
                                            : "#9aa3ad");
    (void)fprintf(p->out, "</g>\n");
}

static struct bar bar_of(struct json_object *event)
{
    enum trace_kind kind = trace_kind(event);
    int64_t dst = field_int(event, "dst", DST_NONE);
    struct bar bar = {.start = fmax(0, field_double(event, "start_ns", 0)), .slices = 1, .event = event};

    bar.end = fmax(bar.start, field_double(event, "end_ns", bar.start));
    bar.spent[kind] = fmax(bar.end - bar.start, 1e-3);
    bar.dst = !trace_has_destination(kind) ? DST_NONE : dst < 0 ? DST_ALL : dst;
    return bar;
}

/* Merges `next` into `open` if both are narrow, touch, and look the same or are still too narrow to be seen together. */
static bool bar_merge(const struct picture *p, struct bar *open, const struct bar *next)
{
    double narrow = NARROW / PLOT * p->duration; /* in ns */

    if (open->slices == 0 || next->end - next->start >= narrow || next->start - open->end >= narrow)
        return false;
    if (open->slices == 1 && open->end - open->start >= narrow)
        return false;
    if (open->end - open->start >= narrow && (bar_kind(open) != bar_kind(next) || open->dst != next->dst))
        return false;
    for (int kind = 0; kind < TRACE_KINDS; kind++)
        open->spent[kind] += next->spent[kind];
    if (open->dst != next->dst)
        open->dst = open->dst == DST_NONE ? next->dst : next->dst == DST_NONE ? open->dst : DST_MIXED;
    open->end = fmax(open->end, next->end);
    open->slices += next->slices;
    return true;
}

static int by_start(const void *a, const void *b)
{
    double x = ((const struct bar *)a)->start, y = ((const struct bar *)b)->start;
    return (x > y) - (x < y);
}

/* Draws all slices of one workgroup. Adds the time not spent waiting to *busy. */
static int lane_draw(const struct picture *p, struct json_object *workgroup, double *busy)
{
    size_t n = field_count(workgroup, "events");
    struct bar *bars = calloc(n + 1, sizeof(*bars)), open = {0};

    if (!bars)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        bars[i] = bar_of(field_at(workgroup, "events", i));
        if (bar_kind(&bars[i]) != TRACE_WAIT)
            *busy += bars[i].end - bars[i].start;
    }
    qsort(bars, n, sizeof(*bars), by_start);
    (void)fprintf(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"lane\"/>\n", LEFT, p->y, PLOT,
                  p->body);
    for (size_t i = 0; i < n; i++) {
        if (bar_merge(p, &open, &bars[i]))
            continue;
        if (open.slices)
            bar_draw(p, &open, bars[i].start);
        open = bars[i];
    }
    if (open.slices)
        bar_draw(p, &open, p->duration);
    free(bars);
    return 0;
}

static int rank_draw(struct picture *p, struct json_object *rank)
{
    size_t n = field_count(rank, "workgroups");
    double top = p->y, busy = 0;

    p->rank = field_int(rank, "rank", 0);

    for (size_t w = 0; w < n; w++) {
        struct json_object *workgroup = field_at(rank, "workgroups", w);
        p->lane_name = field_text(workgroup, "name");
        int status = lane_draw(p, workgroup, &busy);
        if (status)
            return status;
        if (p->lane >= 12)
            (void)fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"faint\" text-anchor=\"end\">%" PRId64 "</text>\n",
                          LEFT - 8, p->y + p->body / 2 + 4, field_int(workgroup, "workgroup", (int64_t)w));
        p->y += p->lane;
    }
    double middle = (top + p->y) / 2;
    (void)fprintf(p->out, "<text x=\"24\" y=\"%.1f\" class=\"rank\">rank %" PRId64 "</text>\n",
                  middle + (p->y - top > 30 ? -2 : 4), field_int(rank, "rank", 0));
    if (p->y - top > 30)
        (void)fprintf(p->out, "<text x=\"24\" y=\"%.1f\" class=\"faint\">device %" PRId64 "</text>\n", middle + 13,
                      field_int(rank, "device", 0));
    if (n > 0)
        (void)fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"label\">%.0f %% busy</text>\n", WIDTH - RIGHT + 10,
                      middle + 4, 100 * busy / (p->duration * (double)n));
    p->y += RANK_GAP;
    return 0;
}

int trace_svg(struct json_object *trace, FILE *out)
{
    struct picture p = {.out = out,
                        .duration = trace_duration(trace),
                        .sum = trace_sum(trace, 0, SIZE_MAX),
                        .slices_name = trace_is_rules(trace) ? "runs" : "slices",
                        .lane_name = ""};
    int status = 0;

    p.nranks = field_int(trace, "nranks", (int64_t)field_count(trace, "ranks"));
    lanes_measure(&p, trace);
    (void)fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n",
                  WIDTH, p.height, WIDTH, p.height);
    (void)fprintf(out, "<style>text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#22303c}"
                       ".title{font-size:20px;font-weight:600}.sub{font-size:14px;font-weight:400;fill:#5b6773}"
                       ".rank{font-size:13px;font-weight:600}.label{font-size:12px}.faint{font-size:11px;fill:#7b8794}"
                       ".lane{fill:#f4f6f8}</style>\n");
    (void)fprintf(out, "<defs><pattern id=\"wait\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
                       "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#eceff2\"/>"
                       "<rect width=\"2\" height=\"6\" fill=\"#c3cad2\"/></pattern></defs>\n");
    (void)fprintf(out, "<rect width=\"%.0f\" height=\"%.0f\" rx=\"8\" fill=\"#ffffff\"/>\n", WIDTH, p.height);
    title_draw(&p, trace);
    (void)fprintf(out, "<text x=\"%.0f\" y=\"36\" class=\"title\" text-anchor=\"end\">%s</text>\n", WIDTH - 24,
                  time_text(p.duration).text);
    legend_draw(&p);
    for (size_t i = 0; i < field_count(trace, "ranks") && !status; i++)
        status = rank_draw(&p, field_at(trace, "ranks", i));
    axis_draw(&p);
    (void)fprintf(out, "</svg>\n");
    return status;
}
