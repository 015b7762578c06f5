# SPDX-License-Identifier: MIT
"""The rows, and their goals. Needs neither torch nor a GPU."""
import math
import pathlib
from dataclasses import dataclass, field

PROGRAMS = pathlib.Path(__file__).resolve().parents[4] / "client" / "programs"
ADAM_SCALARS = "lr=1,beta1=0.9,beta2=0.999,epsilon=1e-8,step=3,scale=0.5"
ADAM_TENSORS = "g:bf16,p:bf16,w:f32,m:f32,v:f32"
EPILOGUE_TENSORS = "bias:bf16,residual:bf16,y:bf16"

ADAM, SHARDED, LAMB = "all_reduce + Adam", "reduce_scatter + Adam + all_gather", "all_reduce + LAMB"
EPILOGUE, PRODUCT, LAYER = "all_reduce + epilogue", "product", "product + all_reduce + epilogue"
FLAT, EACH = "copies + all_reduce + Adam + copies", "all_reduce of each tensor + Adam"
FCCD = "fccd"
LINK_TIMES = 1.15  # an epilogue may take so many times what its bytes take on the link, where that is more than its goal

MET, MISSED = "met", "missed"


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # "program", "model" or "tuner"
    program: str = ""  # of client/programs
    dtype: str = "f32"  # of its tensors, in the place of the f32 that it is written in
    sizes: dict = field(default_factory=dict)
    checked: dict = field(default_factory=dict)  # sizes of the program in double precision that results are compared with
    apart: bool = False  # that is a run of its own, without dropout, which looks at an element's place
    tensors: str = ""
    scalars: str = ""
    against: dict = field(default_factory=dict)  # {what of sequences.py or model.py: at most this ratio; None: no goal}
    beside: tuple = ()  # what else is measured


def adam_rows():
    for log2 in (20, 22, 24, 26, 28):
        large, n = log2 >= 24, 1 << log2
        yield Row(f"Adam 2^{log2}", "program", "adam_mixed", sizes={"N": n}, checked={"N": min(n, 1 << 20)}, tensors=ADAM_TENSORS, scalars=ADAM_SCALARS,
                  against={ADAM: 0.5 if large else 1.0, SHARDED: 0.65 if large else None})


def lamb_rows():
    for log2 in (20, 22, 24, 26, 28):
        n = 1 << log2
        yield Row(f"LAMB 2^{log2}", "program", "lamb_mixed", sizes={"N": n}, checked={"N": min(n, 1 << 20)}, tensors=ADAM_TENSORS, scalars=ADAM_SCALARS + ",decay=0.01",
                  against={LAMB: 0.55 if log2 >= 24 else None})


def layer_rows():
    for name, m, h in ("GPT-2 8.3B", 8192, 3072), ("GPT-3", 4096, 12288):
        sizes = {"M": m, "H": h}
        yield Row(f"epilogue {name}", "program", "epilogue", "bf16", sizes, sizes, tensors=f"x:bf16,{EPILOGUE_TENSORS}", scalars="seed=1,step=1", against={EPILOGUE: 0.6})
        for what, k in ("attention", h), ("MLP", 4 * h):
            sizes = {"M": m, "H": h, "K": k}
            yield Row(f"layer {name} {what}", "program", "mlp_slices", "bf16", sizes, {**sizes, "M": 2}, True, f"x:bf16,w:bf16,{EPILOGUE_TENSORS}", "seed=1,step=1",
                      {LAYER: 0.8}, (PRODUCT,))


def rows():
    model = [Row("Adam, model's tensors, gradients copied", "model", against={FLAT: 0.55}), Row("Adam, model's tensors, gradients in place", "model", against={EACH: 0.7})]
    return [*adam_rows(), *model, *lamb_rows(), *layer_rows(), Row("tuner", "tuner", "adam_mixed", sizes={"N": 1 << 24})]


# ---- goals ----


def link_us(row, ranks, link_rate):
    """What the bytes of an all_reduce take that leave a GPU; None: not known."""
    if not link_rate or ranks < 2:
        return None
    return 2 * (ranks - 1) / ranks * math.prod((row.sizes["M"], row.sizes["H"])) * 2 / link_rate * 1e6


def limit_of(row, name, times, ranks, link_rate):
    """(the ratio that a row may have, what is to be said of it)"""
    limit = row.against[name]
    if name == EPILOGUE:
        link = link_us(row, ranks, link_rate)
        if link is None:
            return limit, "the link's rate was not measured"
        at_link = LINK_TIMES * link / times[name]
        return (at_link, f"{LINK_TIMES} x the link's {link:.1f} us") if at_link > limit else (limit, "")
    if name == LAYER and times.get(PRODUCT):
        part = times[PRODUCT] / times[name]
        return (0.6 if part <= 0.5 else limit), f"the product is {part:.2f} of it"
    return limit, ""


def judge(row, times, missing, ranks, link_rate):
    """[as goals.judge() has it]. times: {FCCD or what else: us}; missing: {the same: why there is no time}. Of the tuner they are seconds: TUNED and CACHED."""
    if row.kind == "tuner":
        return [verdict(what, "s", limit, times.get(what), missing.get(what), "") for what, limit in ((TUNED, 60.0), (CACHED, 0.05))]
    found = []
    for name, limit in row.against.items():
        gone = next((f"{what}: {missing.get(what, 'not measured')}" for what in (FCCD, name) if times.get(what) is None), None)
        if limit is None:
            continue
        note = ""
        if gone is None:
            limit, note = limit_of(row, name, times, ranks, link_rate)
            if name == LAYER and not times.get(PRODUCT):
                gone = f"{PRODUCT}: {missing.get(PRODUCT, 'not measured')}"
        found.append(verdict(f"{FCCD} / {name}", "", limit, None if gone else times[FCCD] / times[name], gone, note))
    return found


TUNED, CACHED = "tuned from nothing", "taken from the cache"


def verdict(goal, unit, limit, figure, why, note):
    return {"goal": goal, "limit": f"<= {limit:.2f}{' ' if unit else ''}{unit}", "figure": figure, "verdict": None if figure is None else MET if figure <= limit else MISSED,
            "why": (why or "not measured") if figure is None else note or None}
