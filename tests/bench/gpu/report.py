# SPDX-License-Identifier: MIT
"""What compare_gpu prints at the end, and its JSON file."""
import json

from . import baselines, beside, collectives, decode, figures, goals, shapes, t3, torch_ops

SCHEDULE_TITLES = {"fused": "fused", "sequential": "seq.", "auto": "auto", "compute_only": "compute", "comm_only": "comm"}
DETAILS = {("compute_only", "kernel"): (", longest rank", "GPU"), ("comm_only", "kernel"): (", after the last began", "last"),
           ("fused", "kernel"): None}
RATE_UNITS = {"memory": (1e12, "TB/s, a copy within the device, read and written"),
              "link": (1e9, "GB/s, a copy to the next rank's GPU, all ranks at once"),
              "matrix": (1e12, "TFLOP/s, 8192^3, float16")}


def median(times, key):
    """A number, a word that says why there is none, or None."""
    value = times.get(key)
    return value["median"] if isinstance(value, dict) else value


def best_sequence(row, times):
    """Of the embedding: with our own pooling in front of the All-to-All, if that is faster than PyTorch's."""
    try:
        return goals.Times(row, times, None).sequence()
    except goals.Missing:
        return None


def same_work(row, times):
    found = [median(times, b.key) for b in baselines.of(row) if b.same_work]
    return found + [best_sequence(row, times)] if row.part == shapes.EMBEDDING else found


def ratios(row, times):
    """fccd's time / the best baseline's, for each of fccd's times that do the same work; None where one is missing."""
    return {f"{schedule} {what}": figures.ratio(median(times, f"{schedule} {what}"), same_work(row, times))
            for schedule, whats in row.measures if schedule != "compute_only" for what in whats
            if what in ("kernel", "stream", "grouped", "prepared")}


def columns_of(rows):
    """[(title above, title, key or function of a row and its times)] of what is measured for a part's rows."""
    found = []
    for row in rows:
        found += [("", b.title if row.part != shapes.AUTO else "sequence", b.key) for b in baselines.of(row)]
    if rows[0].part == shapes.EMBEDDING:
        found.append(("best", "sequence", best_sequence))
    for schedule, whats in rows[0].measures:
        for i, what in enumerate(whats):
            found.append((SCHEDULE_TITLES[schedule] if i == 0 else "", what, f"{schedule} {what}"))
            detail = DETAILS.get((schedule, what))
            if detail:
                found.append(("", detail[1], f"{schedule} {what}{detail[0]}"))
    return list(dict.fromkeys(found))


def part_table(comparison, part):
    ranks = comparison.ranks.settings.ranks
    rows = [row for row in comparison.chosen if row.part == part]
    columns = columns_of(rows)
    compared = list(ratios(rows[0], {}))
    header = [("", "row"), ("", "floor"), ("", "by"), *((above, title) for above, title, _ in columns),
              *(tuple(f"{SCHEDULE_TITLES[word]} {what} /best".split(" ", 1)) for word, what in (c.split() for c in compared))]
    lines = [[above for above, _ in header], [title for _, title in header]]
    for row in rows:
        times = comparison.results[row]["times"]
        floor, by = shapes.floor(row.shape, ranks, comparison.rates)
        against = ratios(row, times)
        cells = [figures.cell(key(row, times) if callable(key) else median(times, key)) for _, _, key in columns]
        lines.append([row.name, figures.cell(floor), by or "-", *cells,
                      *(f"{against[key]:.2f}" if against[key] else "-" for key in compared)])
    return figures.table_text(f"{part}, {ranks} rank{'s' if ranks > 1 else ''}, us", lines)


def noop_table(comparison):
    ranks = comparison.ranks.settings.ranks
    row = next(row for row in comparison.chosen if row.part == shapes.NOOP)
    times = comparison.results[row]["times"]
    ways = ("pipelined", "queued", "synchronised")
    lines = [["", *ways]]
    for name, title in (("noop", "noop through the daemon"), ("kernel", "empty kernel"), ("kernel and noop", "both in turns")):
        lines.append([title, *(figures.cell(median(times, f"{name} {way}")) for way in ways)])
    launches = comparison.results[row].get("launches")
    who = ("launched by the ranks: {bound} of {operators} noops; taken back {recalled} times\n".format(**launches)
           if launches else "")
    return figures.table_text(f"noop, {ranks} rank{'s' if ranks > 1 else ''}, us", lines) + who


def torch_ops_table(comparison):
    ranks = comparison.ranks.settings.ranks
    columns = [(way, what) for what in torch_ops.WHATS for way in torch_ops.WAYS]
    lines = [["", *(what for _, what in columns)], ["row", *(way for way, _ in columns)]]
    for row in comparison.chosen:
        if row.part == shapes.TORCH_OPS:
            times = comparison.results[row]["times"]
            lines.append([row.name, *(figures.cell(median(times, f"{way} {what}")) for way, what in columns)])
    return figures.table_text(f"{shapes.TORCH_OPS}, {ranks} rank{'s' if ranks > 1 else ''}, us", lines)


def collectives_table(comparison):
    ranks = comparison.ranks.settings.ranks
    rows = [row for row in comparison.chosen if row.part == shapes.COLLECTIVES]
    columns = [(what, way) for what in collectives.WHATS for way in collectives.WAYS
               if any(f"{way} {what}" in comparison.results[row]["times"] for row in rows)]
    header = [("", "row"), ("", "floor"), *columns, ("graph", "/best"), ("stream", "/best")]
    lines = [[above for above, _ in header], [title for _, title in header]]
    for row in rows:
        times = comparison.results[row]["times"]
        others = {what: [median(times, f"{way} {what}") for way in collectives.WAYS[1:]] for what in ("graph", "stream")}
        against = [figures.ratio(median(times, f"{collectives.FCCD} {what}"), others[what]) for what in ("graph", "stream")]
        lines.append([row.name, figures.cell(shapes.floor(row.shape, ranks, comparison.rates)[0]),
                      *(figures.cell(median(times, f"{way} {what}")) for what, way in columns),
                      *(f"{ratio:.2f}" if ratio else "-" for ratio in against)])
    return figures.table_text(f"{shapes.COLLECTIVES}, {ranks} rank{'s' if ranks > 1 else ''}, us", lines)


def decode_table(comparison, part):
    ranks = comparison.ranks.settings.ranks
    rows = [row for row in comparison.chosen if row.part == part]
    ways = decode.ways_of(rows[0].shape)
    lines = [["row", "floor", "by", *ways, "/best"]]
    missing = {}
    for row in rows:
        times = comparison.results[row]["times"]
        floor, by = shapes.floor(row.shape, ranks, comparison.rates)
        ratio = goals.decode_ratio(times)
        lines.append([row.name, figures.cell(floor), by or "-", *(figures.cell(median(times, way)) for way in ways),
                      f"{ratio:.2f}" if ratio else "-"])
        for said in comparison.results[row].get("missing", {}).items():
            missing.setdefault(said, []).append(row.name)
    text = figures.table_text(f"{part}, {ranks} rank{'s' if ranks > 1 else ''}, us", lines)
    return text + "".join(f"{way}: not there for {len(names)} of {len(rows)} rows, first {names[0]}: {why}\n"
                          for (way, why), names in missing.items())


def together_judged(comparison):
    """What is said of several rows together: of decode steps, of T3's sublayers, and of products beside an exchange."""
    results = {row: comparison.results[row]["times"] for row in comparison.chosen}
    return (goals.decode_judge(results) + beside.judge({row: comparison.results[row] for row in comparison.chosen}, comparison.rates) +
            t3.judge(results, comparison.ranks.settings.ranks, comparison.rates))


def judged(comparison):
    """{row: what goals.judge() says}"""
    ranks = comparison.ranks.settings.ranks
    return {row: goals.judge(row, comparison.results[row]["times"], shapes.floor(row.shape, ranks, comparison.rates)[0])
            for row in comparison.chosen}


def goals_table(comparison):
    found = judged(comparison)
    lines = [["row", "goal", "limit", "figure", ""]]
    for row, verdicts in found.items():
        for i, v in enumerate(verdicts):
            figure = "-" if v["figure"] is None else f"{v['figure']:.2f}"
            lines.append([row.text if i == 0 else "", v["goal"], v["limit"], figure, v["verdict"] or v["why"]])
    together = together_judged(comparison)
    for text, v in together:
        figure = "-" if v["figure"] is None else f"{v['figure']:.2f}"
        lines.append([text, v["goal"], v["limit"], figure, ", ".join(filter(None, (v["verdict"], v["why"])))])
    return (figures.table_text("goals", lines, left=(0, 1, 4)) +
            goals.count_text([*found.values(), [v for _, v in together]]) + "\n")


NOTES = """\
medians of the slowest rank, in us per call; inputs taken in turns so that none is in the L2 cache when its turn comes
  floor     the largest of: bytes / memory rate, operations / matrix rate, bytes that leave the GPU / link rate
  NCCL      PyTorch with its BLAS and NCCL in a CUDA graph, as are GEMV, GEMM, pooling and the symmetric memory's one-shot
            and two-shot, each behind its GEMV. (mm+RS) is fused_matmul_reduce_scatter: another collective, for orientation,
            and not in a graph
  GEMM      the product alone; of M >= 4096 before fccd and after it, as a GPU that has become warm takes longer at the same power
  kernel    fccd: from the first slice's start to the last one's end over all ranks, from its trace
  stream    fccd: from event to event on the caller's stream through the daemon, many calls in a row
  grouped   fccd: the same, as many calls in a group (fcc_group_begin()) as there are in a CUDA graph of the baselines
  prepared  fccd: the same, of operators prepared once (fcc_gemv_all_reduce_prepare()): the daemon plans, the client launches
  queued    fccd: as stream, behind a kernel that holds the stream until all are enqueued: without the CPU's part
  latency   fccd: as stream, one call on an idle GPU
  /best     fccd / the fastest of the columns that do the same work with NCCL or symmetric memory
  compute   fccd's compute_only schedule: pooling alone, into the GPU's own memory. GPU: within the slowest GPU
  comm      fccd's comm_only schedule: the AllReduce of y alone. last: from the moment when the last rank had begun
  noop      pipelined: in a row; queued: see above; synchronised: one on an idle GPU. The empty kernel is in the caller's own
            stream, launched one by one as the noop is
  torch.ops host: the CPU's time for a call of torch.ops.fcc.gemv_all_reduce, and for the C library's enqueue; stream and
            queued: see above, both with schedule auto on one communicator
  collectives     in PyTorch's own memory, in CUDA graphs, by stream, and the CPU's time for a call; one-shot, two-shot and copies
            are symmetric memory's, in memory of their own. /best: fccd / the fastest of the others
  decode          in CUDA graphs: the product alone; with NCCL or symmetric memory's one-shot, PyTorch's addition and rms_norm behind
            it; with FlashInfer's allreduce_fusion behind it; fccd: up to 64 rows fcc.gemv_all_reduce_epilogue, beyond PyTorch's product
            and fcc.all_reduce_epilogue. all_reduce+norm: what follows the product, alone. /best: fccd / the fastest of NCCL, one-shot
            and FlashInfer
  t3              a product and its collective, in CUDA graphs: the product alone; the exchange alone, NCCL's or fccd's; the product with NCCL's
            collective; with fccd's; PyTorch's fused ones (by stream), or two-shot behind the product; the ring of products in pieces, by copy
            engines; fccd's operator in pieces, by tiles, and as it chooses. floor: the longer of the product and the bytes at the link's
            rate. /best: fccd / the fastest of the others
  beside          a product alone, and while rows are stored by copy engines, or gathered by fccd's or NCCL's all_gather. /link: how fast that was, of
            the link's rate
  examples        of client/python/examples, as they say themselves: a forward step of dlrm.py, and a token of llama.py --like 8b-16-layers
  best sequence   the embedding's pooling+NCCL, or our pooling alone plus A2A, whichever is shorter
goals: gpu/goals.py says what they are. The floor takes the rates above, of this run
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
    for part in shapes.PARTS:
        if any(row.part == part for row in comparison.chosen):
            alone = {shapes.NOOP: noop_table, shapes.TORCH_OPS: torch_ops_table, shapes.COLLECTIVES: collectives_table,
                     shapes.BESIDE: beside.table, shapes.T3: t3.table}.get(part)
            table_of = decode_table if part in (shapes.DECODE, shapes.NORM, shapes.EXAMPLES) else part_table
            print(alone(comparison) if alone else table_of(comparison, part))
    if settings.ranks > settings.gpus:
        print(f"-: {settings.ranks} ranks share {settings.gpus} GPU{'s' if settings.gpus > 1 else ''}, which NCCL and "
              "symmetric memory refuse; GEMV, GEMM and pooling run on all ranks at once, as do the rates\n")
    if comparison.unprepared:
        print(f"-: prepared: {comparison.unprepared}\n")
    print(goals_table(comparison))
    for title, lines in (("failed", comparison.failures), ("WRONG", comparison.wrong)):
        for line in lines:
            print(f"{title}: {line}")


def write_json(path, facts, comparison):
    ranks = comparison.ranks.settings.ranks
    verdicts, together = judged(comparison), together_judged(comparison)
    found = []
    for row in comparison.chosen:
        floor, by = shapes.floor(row.shape, ranks, comparison.rates)
        result = comparison.results[row]
        found.append({"part": row.part, "operator": row.shape.operator, "shape": row.shape.name, "dtype": row.shape.dtype,
                      **result, "floor_us": floor, "floor_by": by,
                      "ratios_to_best_baseline": ratios(row, result["times"]), "goals": verdicts[row]})
    path.write_text(json.dumps({
        "facts": facts,
        "ranks": ranks,
        "seed": comparison.ranks.settings.seed,
        "rates": comparison.rate_figures,
        "units": "times in us per call, rates in bytes or operations per second",
        "rows": found,
        "goals": goals.count_text([*verdicts.values(), [v for _, v in together]]),
        "goals of rows together": [{"of": text, **v} for text, v in together],
        "failures": comparison.failures,
        "wrong": comparison.wrong,
        "unprepared": comparison.unprepared,
        "complete": comparison.complete,
    }, indent=1) + "\n", encoding="utf-8")
