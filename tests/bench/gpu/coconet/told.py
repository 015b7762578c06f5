# SPDX-License-Identifier: MIT
"""What is printed of the rows, and the JSON file."""
import json

from .. import figures, goals
from .course import OVER
from .rows import FCCD, judge

NOTES = """\
medians of the slowest rank, in us for a step in a CUDA graph, all ranks having met before. Gradients and parameters are bf16; of the optimisers the master copy and the averages, f32
  fccd        programs by program_fcc, their results compared with double precision; of a model's tensors fcc.optim.Adam(capturable=True)
  link        GB/s, a copy to the next rank's GPU, all ranks at once: an all_reduce's epilogue may take 1.15 times its bytes' time there, where that is more than its goal
  tuner       fccctl tune at a terminal, with its bar, from its start to its end; and what it says that a choice in its cache takes
"""


def judged(result, ranks, link_rate):
    return judge(result.row, result.times, result.missing, ranks, link_rate)


def lines(result, ranks, link_rate):
    """Of one row, as soon as it has run."""
    unit = "s" if result.row.kind == "tuner" else "us"
    for name, time in result.times.items():
        yield f"{result.row.name}: {name} {time:.{3 if unit == 's' else 1}f} {unit}"
    for name, why in result.missing.items():
        yield f"{result.row.name}: {name}: not run: {why}"
    for note in result.notes:
        yield f"{result.row.name}: {note}"
    for goal in judged(result, ranks, link_rate):
        if goal["figure"] is not None:
            said = f" ({goal['why']})" if goal["why"] else ""
            yield f"{result.row.name}: {goal['goal']} {goal['figure']:.2f}, goal {goal['limit']}: {goal['verdict']}{said}"


def table(results, ranks, link_rate):
    shown = [["row", "goal", "limit", "figure", ""]]
    for result in results:
        for i, goal in enumerate(judged(result, ranks, link_rate)):
            figure = "-" if goal["figure"] is None else f"{goal['figure']:.3f}" if goal["limit"].endswith("s") else f"{goal['figure']:.2f}"
            shown.append([result.row.name if i == 0 else "", goal["goal"], goal["limit"], figure, ", ".join(filter(None, (goal["verdict"], goal["why"])))])
    return figures.table_text("goals", shown, left=(0, 1, 4)) + goals.count_text([judged(result, ranks, link_rate) for result in results]) + "\n"


def failures(results):
    """What of fccd's did not run, and was not left out for the time."""
    return [f"{result.row.name}: {name}: {why}" for result in results for name, why in result.missing.items()
            if why != OVER and name not in (*result.row.against, *result.row.beside)]


def wrong(results):
    return [f"{result.row.name}: {note}" for result in results for note in result.notes if result.wrong and "WRONG" in note]


def complete(results):
    return not any(why == OVER for result in results for why in result.missing.values())


def well(results):
    """Whether all of fccd's ran, and nothing was wrong."""
    return complete(results) and not failures(results) and not wrong(results)


def print_report(facts, course, results):
    ranks = course.ranks.settings.ranks
    print()
    for key, value in facts.items():
        print(f"{key:14} {value}")
    if course.no_link:
        print(f"{'link rate':14} not measured: {course.no_link}")
    if course.link_rate:
        print(f"{'link rate':14} {course.link_rate / 1e9:.2f} GB/s, a copy to the next rank's GPU, all ranks at once")
    print(f"\n{NOTES}\n{table(results, ranks, course.link_rate)}", end="")
    for title, said in (("failed", failures(results)), ("WRONG", wrong(results))):
        for line in said:
            print(f"{title}: {line}")


def write_json(path, facts, course, results):
    settings = course.ranks.settings
    rate, ranks = course.link_rate, settings.ranks
    verdicts = [judged(result, ranks, rate) for result in results]
    rows = [{"part": "coconet", "name": r.row.name, "program": r.row.program or None, "dtype": r.row.dtype, "sizes": r.row.sizes, "times": r.times, "missing": r.missing,
             "checked": r.checked, "wrong": r.wrong, "notes": r.notes, "fccd": r.times.get(FCCD), "goals": v} for r, v in zip(results, verdicts)]
    path.write_text(json.dumps({"facts": facts, "ranks": ranks, "seed": settings.seed, "rates": {"link": rate}, "units": "times in us per step, of the tuner in s; rates in bytes per second",
                                "rows": rows, "goals": goals.count_text(verdicts), "failures": failures(results), "wrong": wrong(results), "complete": complete(results)}, indent=1) + "\n",
                    encoding="utf-8")
