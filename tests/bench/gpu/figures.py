# SPDX-License-Identifier: MIT
"""Figures from samples and traces, and their tables. Needs neither torch nor a GPU."""
import math
import statistics


def summary(samples):
    """Of one rank, in us."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    return {
        "median": statistics.median(ordered),
        "min": ordered[0],
        "p90": ordered[math.ceil(0.9 * len(ordered)) - 1],
        "samples": len(ordered),
    }


def slowest(per_rank):
    """The summary of the rank whose median is highest, which rank that is, and every rank's median."""
    summaries = [summary(samples) for samples in per_rank]
    rank = max(range(len(summaries)), key=lambda r: summaries[r]["median"])
    return {**summaries[rank], "rank": rank, "medians": [s["median"] for s in summaries]}


def trace_spans(trace):
    """From the JSON of `fccctl trace --json`, in us: from the first slice's start to the last one's end over all ranks; the
    same within the rank where it is longest; and from the moment when the last rank had begun. Waiting counts: a rank has
    its result when it has seen the others'."""
    spans = []
    for rank in trace["ranks"]:
        events = [e for w in rank["workgroups"] for e in w["events"]]
        if events:
            spans.append((min(e["start_ns"] for e in events), max(e["end_ns"] for e in events)))
    if not spans:
        raise ValueError("the trace has no slices of any rank")
    last = max(end for _, end in spans)
    return ((last - min(start for start, _ in spans)) / 1e3, max(end - start for start, end in spans) / 1e3,
            (last - max(start for start, _ in spans)) / 1e3)


def cell(value):
    """A time or its absence, short."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def ratio(time, baselines):
    """time / the best of the baselines; None when there is nothing to compare."""
    known = [b for b in baselines if isinstance(b, (int, float))]
    return time / min(known) if known and isinstance(time, (int, float)) else None


def table_text(title, lines, left=(0,)):
    """Columns aligned: those of `left` to the left, figures to the right. The first lines are the header."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [title]
    for line in lines:
        text.append("  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip())
    return "\n".join(text) + "\n"
