/* SPDX-License-Identifier: MIT
 *
 * flight_svg.c - draws a flight recorder as SVG: a lane for each communicator, time to the right. The lower, pale part of a box is the wait for
 * ranks, the upper part the operator, in a colour of its kind; what has not ended is open to the right, and what has failed is red. Below them are the runs
 * that ranks have launched, in the same way: the lower, pale part from the first rank's begin until the last one's, the upper from the first begin to the last end.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "client/fccctl/field.h"
#include "client/fccctl/flight/flight.h"

#define WIDTH 1280.0
#define LEFT 150.0
#define PLOT (WIDTH - LEFT - 24)
#define LANE 34.0
#define RUNS_LANE 22.0 /* below it, of a communicator whose ranks launch themselves */
#define TOP 64.0

static const char *const colours[] = {"#2f6fb0", "#e0862f", "#7b5ea7", "#1b9e77", "#e6ab02", "#66c2ff", "#a6761d", "#7a7a7a"};

struct range {
    double first, last;
};

/* All times of the records; an operator that has not ended lasts until the last one, and a bit. */
static struct range range_of(struct json_object *flight)
{
    struct range r = {INFINITY, 0};

    for (size_t c = 0; c < field_count(flight, "comms"); c++) {
        struct json_object *comm = field_at(flight, "comms", c);
        for (size_t i = 0; i < field_count(comm, "operators"); i++) {
            struct json_object *o = field_at(comm, "operators", i);
            double arrived = field_double(o, "arrived_ns", 0), begun = field_double(o, "begun_ns", 0);
            r.first = fmin(r.first, arrived);
            r.last = fmax(r.last, fmax(fmax(arrived, begun), field_double(o, "ended_ns", 0)));
        }
        for (size_t i = 0; i < field_count(comm, "launched"); i++) {
            struct json_object *o = field_at(comm, "launched", i);
            const double begun = field_double(o, "begun_ns", 0);
            if (begun <= 0)
                continue;
            r.first = fmin(r.first, begun);
            r.last = fmax(r.last, fmax(fmax(begun, field_double(o, "came_ns", 0)), field_double(o, "ended_ns", 0)));
        }
    }
    if (!(r.last > r.first))
        r = (struct range){isfinite(r.first) ? r.first : 0, (isfinite(r.first) ? r.first : 0) + 1};
    r.last += (r.last - r.first) / 50;
    return r;
}

static void box(FILE *out, const struct range *r, double from, double to, double y, double height, const char *colour)
{
    double x = LEFT + (from - r->first) / (r->last - r->first) * PLOT;
    double width = fmax((to - from) / (r->last - r->first) * PLOT, 0.6);

    (void)fprintf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>", x, y, width, height, colour);
}

static const char *colour_of(const char *op)
{
    unsigned hash = 0;

    for (const char *p = op; *p; p++)
        hash = hash * 31 + (unsigned char)*p;
    return colours[hash % (sizeof(colours) / sizeof(colours[0]))];
}

static void launched_draw(FILE *out, const struct range *r, struct json_object *o, double y)
{
    const double begun = field_double(o, "begun_ns", 0), came = field_double(o, "came_ns", 0),
                 ended = field_double(o, "ended_ns", 0);
    const char *op = field_text(o, "op"), *state = field_text(o, "state"),
               *colour = strcmp(state, "given up") == 0 ? "#c62828" : colour_of(op);
    const bool is_over = strcmp(state, "running") != 0 && strcmp(state, "waiting") != 0;

    if (begun <= 0)
        return;
    (void)fprintf(out, "<g><title>%s, prepared as %" PRId64 ", run %" PRId64 ": %s, waited %s, ran %s</title>", op,
                  field_int(o, "prepared", 0), field_int(o, "run", 0), state, format_ns(field_double(o, "wait_ns", 0)).text,
                  format_ns(field_double(o, "run_ns", 0)).text);
    box(out, r, begun, came > 0 ? came : is_over ? begun : r->last, y + 12, 4, came > 0 || is_over ? "#c1c6cb" : "#f2b8b5");
    box(out, r, begun, ended > 0 ? ended : is_over ? begun : r->last, y, 11, colour);
    (void)fprintf(out, "</g>\n");
}

static void operator_draw(FILE *out, const struct range *r, struct json_object *o, double y)
{
    double arrived = field_double(o, "arrived_ns", 0), begun = field_double(o, "begun_ns", 0),
           ended = field_double(o, "ended_ns", 0);
    const char *op = field_text(o, "op"), *state = field_text(o, "state"),
               *colour = strcmp(state, "failed") == 0 ? "#c62828" : colour_of(op);
    (void)fprintf(out, "<g><title>%s #%" PRId64 ": %s, waited %s, ran %s</title>", op, field_int(o, "number", 0), state,
                  format_ns(field_double(o, "wait_ns", 0)).text, format_ns(field_double(o, "run_ns", 0)).text);
    box(out, r, arrived, begun > 0 ? begun : r->last, y + LANE - 14, 6, begun > 0 ? "#c1c6cb" : "#f2b8b5");
    if (begun > 0)
        box(out, r, begun, ended > 0 ? ended : r->last, y + 4, LANE - 18, colour);
    (void)fprintf(out, "</g>\n");
}

static double lane_of(struct json_object *comm)
{
    return LANE + (field_count(comm, "launched") ? RUNS_LANE : 0);
}

int flight_draw(struct json_object *flight, FILE *out)
{
    struct range r = range_of(flight);
    size_t n = field_count(flight, "comms");
    double height = TOP + 40, y = TOP;

    for (size_t c = 0; c < n; c++)
        height += lane_of(field_at(flight, "comms", c));

    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
                  "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                  "<text x=\"24\" y=\"30\" font-size=\"16\">operators of worker %" PRId64 "</text>\n"
                  "<text x=\"24\" y=\"48\" fill=\"#666\">%s; pale: the wait for ranks; red: failed</text>\n",
                  WIDTH, height, field_int(flight, "pid", 0), format_duration((r.last - r.first) / 1e9).text);
    for (size_t c = 0; c < n; c++) {
        struct json_object *comm = field_at(flight, "comms", c);
        (void)fprintf(out, "<text x=\"24\" y=\"%.1f\">comm %" PRId64 " (%s)</text>\n", y + 18, field_int(comm, "comm", 0),
                      field_text(comm, "state"));
        for (size_t i = 0; i < field_count(comm, "operators"); i++)
            operator_draw(out, &r, field_at(comm, "operators", i), y);
        for (size_t i = 0; i < field_count(comm, "launched"); i++)
            launched_draw(out, &r, field_at(comm, "launched", i), y + LANE);
        y += lane_of(comm);
    }
    (void)fprintf(out, "</svg>\n");
    return 0;
}
