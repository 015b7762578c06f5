# SPDX-License-Identifier: MIT
"""Programs in Python: the text is that of the shipped programs, and errors name the Python line. Nothing runs here."""
import functools
import re

import fcc
import numpy
import pytest
import torch
from fcc import InOut, In, Out
from shipped_programs import line_of, sgd, adam, lamb, SHIPPED, SCHEDULED


@pytest.mark.parametrize("name", sorted(SCHEDULED))
def test_shipped_texts(name):
    shipped = fcc.Program.read(SHIPPED / f"{name}.fcc")
    assert str(SCHEDULED[name]) == str(shipped)
    assert SCHEDULED[name].scheduled(4) == shipped.scheduled(4)
    assert fcc.Program(str(shipped)).scheduled(2) == shipped.scheduled(2)


def error_of(call):
    with pytest.raises(fcc.ArgumentError) as e:
        call()
    return e.value.reason.replace(__file__, "HERE")


def test_refusals_name_the_dependence_and_the_line():
    def twice():
        return adam.split("a")  # here
    assert error_of(twice).startswith(f"HERE:{line_of(twice, '# here')}: split: `a`")

    def barrier():
        return lamb.fuse("m", "v", "u", "wide", "long", "p")  # here
    assert re.match(rf"HERE:{line_of(barrier, '# here')}: fuse: .*barrier", error_of(barrier))
    fuse = lambda: fcc.Program.read(SHIPPED / "lamb.fcc").split("nothing")  # noqa: E731
    assert "split: `nothing`" in error_of(fuse)
    assert str(adam) == str(adam) and "schedule" not in str(adam)  # refused ones stay as they were


def test_layouts_are_checked_with_the_line():
    def mixed():
        @fcc.program
        def wrong(a: In("f32[N] local"), r: In("f32[N]"), y: Out("f32[N] local"), *, N=8):
            y = (a * 2 +
                 r)  # noqa: F841
    reason = error_of(mixed)
    assert re.match(r"HERE:\d+: \+: .*is local, `r` is replicated", reason), reason
    assert int(reason.split(":")[1]) in (line_of(mixed, "a * 2"), line_of(mixed, "r)"))


@pytest.mark.parametrize("body,reason", [
    (lambda x, y: bool(x > 1), "a value has no truth while its program is traced"),
    (lambda x, y: x + "a", "str 'a': allowed are the program's tensors, and numbers"),
    (lambda x, y: x + torch.ones(3), "Tensor tensor"),
    (lambda x, y: y + 1, "`y` is declared Out, and has no value before it is assigned"),
    (lambda x, y: torch.cumsum(x, 0), "torch's cumsum(): programs have no such operation"),
    (lambda x, y: x[0], "allowed is a slice along one dimension"),
    (lambda x, y: x * float("nan"), "nan: allowed are finite numbers"),
    (lambda x, y: list(x), "a value cannot be iterated over"),
    (lambda x, y: x.to(torch.int32), "to(torch.int32): allowed are torch.float32"),
    (lambda x, y: x + sgd_value[0], "a value of program `other`"),
    (lambda x, y: fcc.all_reduce(x, reduction="max"), "fcc.language has what programs can do"),
    (lambda x, y: fcc.all_reduce(x, 0), "fcc.all_reduce() with reduction, comm: fcc.language has"),
    (lambda x, y: x * torch.sum(x, 0), "torch's sum(): 2 arguments: allowed in programs are 1"),  # not the sum of the whole
    (lambda x, y: x * torch.mean(x, dim=0), "torch's mean(): dim: not in programs"),
    (lambda x, y: torch.sub(x, 2, 3), "torch's sub(): 3 arguments: allowed in programs are 2"),
    (lambda x, y: torch.where(x > 0), "torch's where(): 1 arguments: allowed in programs are 3"),
    (lambda x, y: x // 2, "//: programs have no such operation"), (lambda x, y: (x > 0) & (x < 1), "&: programs have no"), (lambda x, y: ~(x > 0), "~: programs have no"),
    (lambda x, y: len(x), "len(): programs have no"), (lambda x, y: [1, 2][x], "a tensor as an index: programs have no"), (lambda x, y: round(x), "round(): programs have no"),
    (lambda x, y: x.clamp(0), "fcc.Tensor has no clamp: fcc.language lists the operations"), (lambda x, y: x * x.shape[0], "fcc.Tensor has no shape"),
    (lambda x, y: numpy.ones(8) * x, "ndarray array([1., 1., 1., 1., 1., 1., 1., 1.]): allowed are"),
    (lambda x, y: x * 10**400, "an integer of 1329 bits: allowed are numbers that a double has room for"), (lambda x, y: x.to([]), "to([]): allowed are torch.float32"),
    (lambda x, y: (x + 1).named(3), "named(3): allowed is a name"), (lambda x, y: (x + 1).named("a\nscalar q"), "allowed is a name"),
])
def test_wrong_expressions(body, reason):
    def make():
        @fcc.program
        def p(x: In("f32[N] local"), y: Out("f32[N] local"), *, N=8):
            y = body(x, y)  # noqa: F841
    said = error_of(make)
    assert re.match(r"HERE:\d+: ", said) and reason in said, said


sgd_value = []


@fcc.program
def other(x: In("f32[N] local"), y: Out("f32[N] local"), *, N=8):
    sgd_value.append(x)
    y = x + 1


@fcc.program
def scaled(x: In("f32[N]"), y: Out("f32[N]"), *, N=8):
    y = numpy.float64(2) * x


def test_wrong_functions():
    def never():
        @fcc.program
        def p(x: In("f32[N] local"), y: Out("f32[N] local"), *, N=8):
            z = x * 2  # noqa: F841
            y = x + 1  # noqa: F841
    assert error_of(never) == f"HERE:{line_of(never, 'z = x')}: `z` is never used: allowed are values that a result is made of"

    def returns():
        @fcc.program
        def p(x: In("f32[N] local"), *, N=8):
            return x + 1
    assert "`p` returns a value: allowed is to assign" in error_of(returns)

    def kind():
        @fcc.program
        def p(x: torch.Tensor, *, N=8):
            pass
    assert "allowed are fcc.In(), fcc.Out(), fcc.InOut()" in error_of(kind)

    def dtype():
        @fcc.program
        def p(x: In("f31[N]"), y: Out("f32[N]"), *, N=8):
            y = x + 1  # noqa: F841
    assert re.match(r"HERE:\d+: `f31`: expected is a dtype", error_of(dtype))

    def negative():
        @fcc.program
        def p(x: In("f32[N]"), y: Out("f32[N]"), *, N=-8):
            y = x + 1  # noqa: F841
    assert "size `N` = -8: allowed is an integer, 0 and more" in error_of(negative)

    def deep():
        @fcc.program
        def p(x: In("f32[N]"), y: Out("f32[N]"), *, N=8):
            y = functools.reduce(lambda a, _: a + 1, range(5000), x)  # noqa: F841
    assert "`p`: an expression is nested too deeply: give parts of it names" in error_of(deep)
    assert "y = 2 * x" in str(scaled)
    for call, reason in ((lambda: fcc.program(3), "@fcc.program: int 3: allowed is a function"), (lambda: fcc.program(print), "allowed is a function that is written in Python"),
                         (lambda: sgd.fuse("s", 3), "fuse: int 3: allowed are names"), (lambda: sgd.split(None), "split: NoneType None"), (lambda: sgd.fuse("s", "m", name=3), "fuse: int 3"),
                         (lambda: sgd.scheduled(0), "ranks: 0: allowed are 1 to 1024"), (lambda: sgd.scheduled(1 << 40), "ranks: 1099511627776"), (lambda: sgd.scheduled("a"), "ranks: 'a'"),
                         (lambda: sgd.scheduled(**{"N\0x": 3}), "size 'N\\x00x': allowed are names of the program's sizes"), (lambda: sgd.scheduled(N=True), "size N: True: allowed are integers"),
                         (lambda: fcc.Program("x", ranks=1.5), "ranks: 1.5"), (lambda: fcc.CompiledProgram("x", None, {}), "CompiledProgram: program: str: allowed is a Program")):
        assert reason in error_of(call), error_of(call)
    assert sgd.scheduled(N=numpy.int64(8)) == sgd.scheduled(N=8)
    assert not hasattr(sgd_value[0], "clamp")

    def twice():
        @fcc.program
        def p(x: In("f32[N]"), y: Out("f32[N]"), *, N=8):
            y = x + 1
            y = y + 1  # noqa: F841
    assert error_of(twice) == f"HERE:{line_of(twice, 'y = y')}: `y` is assigned a second time: allowed is once"


def test_names():
    """Helper functions, loops, several names in a line, and names that are given again."""
    def twice(x):
        inner = x * 2
        return inner

    @fcc.program
    def p(x: In("f32[N] local"), y: Out("f32[N] local"), z: Out("f32[N] local"), *, N=8):
        a, b = twice(x), x.exp().named("given")
        for _ in range(2):
            a = torch.tanh(a) + b
        z[...] = a
        y = z + b
    assert str(p) == ("program p(N = 8)\nin x: f32[N] local\nout y: f32[N] local\nout z: f32[N] local\n\na = x * 2\ngiven = exp(x)\n"
                      "a_2 = tanh(a) + given\na_3 = tanh(a_2) + given\nz = a_3\ny = z + given\n")
