# SPDX-License-Identifier: MIT
"""What compare_gpu prints at the end, and its JSON file."""
import json

from . import figures, shapes
from .baselines import BASELINES
from .comparison import SCHEDULES

FCCD_COLUMNS = ("kernel", "stream", "latency")
SCHEDULE_TITLES = {"fused": "fused", "sequential": "seq."}
RATE_UNITS = {"memory": (1e12, "TB/s, a copy within the device, read and written"),
              "link": (1e9, "GB/s, a copy to the next rank's GPU, all ranks at once"),
              "matrix": (1e12, "TFLOP/s, 8192^3, float16")}


def median(times, key):
    """A number, a word that says why there is none, or None."""
    value = times.get(key)
    return value["median"] if isinstance(value, dict) else value


def same_work(operator, times):
    return [median(times, b.key) for b in BASELINES[operator] if b.same_work]


def ratios(operator, times):
    """fccd's time / the best baseline's, for each of fccd's times; None where one is missing."""
    return {f"{schedule} {what}": figures.ratio(median(times, f"{schedule} {what}"), same_work(operator, times))
            for schedule in SCHEDULES for what in ("kernel", "stream")}


def operator_table(comparison, operator):
    ranks = comparison.ranks.settings.ranks
    baselines = BASELINES[operator]
    columns = [(SCHEDULE_TITLES[schedule] if what == FCCD_COLUMNS[0] else "", what)
               for schedule in SCHEDULES for what in FCCD_COLUMNS]
    header = [("", "shape"), ("", "floor"), ("", "by"), *(("", b.title) for b in baselines), *columns, ("kernel", "/best"),
              ("stream", "/best")]
    lines = [[above for above, _ in header], [title for _, title in header]]
    for shape in (s for s in comparison.chosen if s.operator == operator):
        times = comparison.shapes[shape]["times"]
        floor, by = shapes.floor(shape, ranks, comparison.rates)
        row = [shape.name, figures.cell(floor), by or "-", *(figures.cell(median(times, b.key)) for b in baselines)]
        row += [figures.cell(median(times, f"{schedule} {what}")) for schedule in SCHEDULES for what in FCCD_COLUMNS]
        against = ratios(operator, times)
        row += [f"{against[key]:.2f}" if against[key] else "-" for key in ("fused kernel", "fused stream")]
        lines.append(row)
    dtype = next(s.dtype for s in comparison.chosen if s.operator == operator)
    return figures.table_text(f"{operator}, {dtype}, {ranks} rank{'s' if ranks > 1 else ''}, us", lines)


NOTES = """\
medians of the slowest rank, in us per call; inputs taken in turns so that none is in the L2 cache when its turn comes
  floor     the largest of: bytes / memory rate, operations / matrix rate, bytes that leave the GPU / link rate
  NCCL      PyTorch with its BLAS and NCCL in a CUDA graph, as are GEMV, GEMM, pooling and the symmetric memory's one-shot
            and two-shot, each behind its GEMV. (mm+RS) is fused_matmul_reduce_scatter: another collective, for orientation,
            and not in a graph
  kernel    fccd: from the first slice's start to the last one's end over all ranks, from its trace
  stream    fccd: from event to event on the caller's stream through the daemon, many calls in a row
  latency   fccd: the same, one call on an idle GPU
  /best     fccd fused / the fastest of the columns that do the same work with NCCL or symmetric memory
"""


def print_facts(facts, comparison):
    for key, value in facts.items():
        print(f"{key:14} {value}")
    for what, rate in comparison.rates.items():
        scale, unit = RATE_UNITS[what]
        print(f"{what + ' rate':14} {rate / scale:.2f} {unit}")
    print(flush=True)


def print_report(facts, comparison):
    settings = comparison.ranks.settings
    print_facts(facts, comparison)
    print(NOTES)
    for operator in shapes.OPERATORS:
        if any(s.operator == operator for s in comparison.chosen):
            print(operator_table(comparison, operator))
    if settings.ranks > settings.gpus:
        print(f"-: {settings.ranks} ranks share {settings.gpus} GPU{'s' if settings.gpus > 1 else ''}, which NCCL and "
              "symmetric memory refuse; GEMV, GEMM and pooling run on all ranks at once, as do the rates\n")
    for title, lines in (("failed", comparison.failures), ("WRONG", comparison.wrong)):
        for line in lines:
            print(f"{title}: {line}")


def write_json(path, facts, comparison):
    ranks = comparison.ranks.settings.ranks
    found = []
    for shape in comparison.chosen:
        floor, by = shapes.floor(shape, ranks, comparison.rates)
        times = comparison.shapes[shape]["times"]
        found.append({"operator": shape.operator, "shape": shape.name, "dtype": shape.dtype, **comparison.shapes[shape],
                      "floor_us": floor, "floor_by": by, "ratios_to_best_baseline": ratios(shape.operator, times)})
    path.write_text(json.dumps({
        "facts": facts,
        "ranks": ranks,
        "seed": comparison.ranks.settings.seed,
        "rates": comparison.rate_figures,
        "units": "times in us per call, rates in bytes or operations per second",
        "shapes": found,
        "failures": comparison.failures,
        "wrong": comparison.wrong,
        "complete": comparison.complete,
    }, indent=1) + "\n", encoding="utf-8")
