# SPDX-License-Identifier: MIT
"""The copies of the header's structs are the header's, and the library is found or missed with a clear word."""
import ctypes
import keyword
import os
import re
import shutil
import struct
import subprocess
import sys

import fcc
import pytest
import torch
from daemon import ROOT
from fcc import _collectives, _library, errors
from fcc.track import _functions

STRUCTS = {"fcc_unique_id": _library.UniqueId, "fcc_connect_options": _library.ConnectOptions,
           "fcc_comm_options": _library.CommOptions, "fcc_env": _library.Env, **_functions.STRUCTS}
TENSOR = ["buffer", "offset", "dtype", "ndim", "shape", "stride"]
CONSTANTS = {"FCC_MAX_DIMS": _library.MAX_DIMS, "FCC_MAX_RANKS": _library.MAX_RANKS, "FCC_SCHEDULE_COMM_ONLY": 4, "FCC_POOLING_MEAN": 1,
             "FCC_BUFFER_SYMMETRIC": _library.SYMMETRIC, "FCC_BUFFER_RESULT": _library.RESULT,
             "FCC_DEVICE_CUDA": _library.DEVICE_CUDA, "FCC_BF16": 3, "FCC_I64": 5, **{f"FCC_{name.upper()}": value for name, value in _library.REDUCTIONS.items()},
             "FCC_F32": _collectives.NUMBERS[torch.float32], "FCC_F16": _collectives.NUMBERS[torch.float16],
             "FCC_I32": _collectives.NUMBERS[torch.int32], "FCC_U8": _collectives.NUMBERS[torch.bool], "FCC_I8": _collectives.NUMBERS[torch.int8],
             "FCC_F64": _collectives.NUMBERS[torch.float64], "FCC_F8E4M3": _collectives.NUMBERS[torch.float8_e4m3fn],
             "FCC_F8E5M2": _collectives.NUMBERS[torch.float8_e5m2]}


def test_header(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    packed = {f"fcc_{operator.name}_args": operator for operator in _library.library().operators.values() if operator.offsets}
    assert len(packed) >= 3
    lines = [f'printf("{name} %zu\\n", sizeof(struct {name}));' for name in [*STRUCTS, *packed]]
    lines += [f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field.rstrip("_")}));' for name, kind in STRUCTS.items()
              for field, *_ in kind._fields_]
    lines += [f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));' for name, operator in packed.items()
              for field in [*operator.offsets, "reserved"]]
    lines += [f'printf("fcc_tensor.{field} %zu\\n", offsetof(struct fcc_tensor, {field}));' for field in TENSOR]
    lines += [f'printf("{name} %d\\n", (int){name});' for name in CONSTANTS]
    lines += ['printf("fcc_epilogue %zu\\n", sizeof(struct fcc_epilogue));']
    lines += ['printf("FCC_ADDRESS %llu\\n", (unsigned long long)(uintptr_t)FCC_ADDRESS);']
    (tmp_path / "offsets.c").write_text("#include <stdio.h>\n#include <fccclient.h>\nint main(void) { " + "\n".join(lines) + " }\n")
    subprocess.run([compiler, "-I", ROOT / "proto", tmp_path / "offsets.c", "-o", tmp_path / "offsets"], check=True)
    said = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in (line.split() for line in said.splitlines())}
    assert found["fcc_epilogue"] == _library.EPILOGUE.size
    for name, kind in STRUCTS.items():
        assert found[name] == ctypes.sizeof(kind)
        for field, *_ in kind._fields_:
            assert found[f"{name}.{field}"] == getattr(kind, field).offset, field
    for name, value in {**CONSTANTS, "FCC_ADDRESS": _library.ADDRESS}.items():
        assert found[name] == value, name
    assert [found[f"fcc_tensor.{field}"] for field in TENSOR] == [0, 8, 16, 20, 24, 56]
    for name, operator in packed.items():
        assert found[name] == operator.layout.size
        assert {field: found[f"{name}.{field}"] for field in operator.offsets} == operator.offsets, name
        assert found[f"{name}.reserved"] == operator.offsets["schedule"] + 4
        assert operator.pack() == bytes(operator.layout.size)
        for field, offset in operator.offsets.items():  # a mark in each must arrive where C finds it
            spelled = field + "_" if keyword.iskeyword(field) else field
            try:
                data = operator.pack(**{spelled: tuple(range(1, 13))})
            except struct.error:
                data = operator.pack(**{spelled: 1})
            assert data[offset] == 1 and not any(data[:offset]), (name, field)


def test_every_function_is_declared():
    header = (ROOT / "proto" / "fccclient.h").read_text()
    operators = _library.library().operators.values()
    names = [f"fcc_{operator.name}{kind}" for operator in operators for kind in ("_start", "_enqueue", *["_prepare"] * bool(operator.prepare))]
    for name in [*_library._FUNCTIONS, *_functions.FUNCTIONS, *names]:
        assert re.search(rf"\b{name}\(", header), name


def test_every_errno_has_an_exception():
    header = (ROOT / "proto" / "fccclient.h").read_text()
    listed = set(re.findall(r"^ \*   -(E[A-Z]+)  ", header, re.M)) - {"EAGAIN"}
    assert len(listed) > 10
    assert {getattr(errors.errno, name) for name in listed} == set(errors._KINDS)
    for code, kind in errors._KINDS.items():
        error = errors.error_of(-code, "rank 3: because")
        assert type(error) is kind and error.rank == 3 and error.code == code and error.remedy in str(error)


def test_capture_is_refused_with_advice():
    """The words are the C library's (client/stream/stream.c)."""
    assert "it is being captured into a graph" in (ROOT / "client" / "stream" / "stream.c").read_text()
    error = errors.error_of(-errors.errno.EOPNOTSUPP, "rank 1: stream: it is being captured into a graph, and fccd launches it")
    assert type(error) is fcc.CaptureError and "leave it out of the capture" in error.remedy and error.rank == 1


def test_library_that_is_not_there(tmp_path):
    program = "import fcc\ntry: fcc.init()\nexcept fcc.LibraryError as e: print(e)"
    said = subprocess.run([sys.executable, "-c", program], env={**os.environ, "FCC_LIBRARY": str(tmp_path / "nothing.so")},
                          capture_output=True, text=True, check=True).stdout
    assert "nothing.so" in said and "FCC_LIBRARY" in said


def test_versions():
    assert fcc.__version__ == _library.library().version().decode()
    assert fcc.__version__ in (ROOT / "client" / "python" / "pyproject.toml").read_text()
    assert f"VERSION := {fcc.__version__}" in (ROOT / "Makefile").read_text()


def test_check_waits(run):
    run(1, check_waits_rank)


def check_waits_rank(comm):
    comm.check(wait=True)
    said = [-11, -11, 0]  # not known yet, in slices
    _library.library().comm_error_wait = lambda handle, timeout_ms: said.pop(0)
    comm.check()
    assert len(said) == 3
    comm.check(wait=True)
    assert not said


def test_no_collectives_are_launched_on_the_cpu(run, on_cpu):
    run(1, not_launched_rank)


def not_launched_rank(comm):
    member, calls = comm.member, _library.library()
    assert not member.launches() and calls.collectives_prepare(member.handle) == -errors.errno.EOPNOTSUPP
    assert "allowed on CUDA GPUs" in calls.last_error_text()
    for op, reason, status, text in ((b"all_reduce", b"x: wrong", errors.errno.EOPNOTSUPP, "cpu device"),
                                     (b"noop", b"x: wrong", errors.errno.EINVAL, 'op: "noop": allowed are the names of'),
                                     (None, b"x", errors.errno.EINVAL, "op: NULL"), (b"all_reduce", None, errors.errno.EINVAL, "reason: NULL")):
        assert calls.refuse_enqueue(member.handle, op, reason, None) == -status and text in calls.last_error_text()
    at = (_library.ADDRESS, 4096, 1, 1, 4, *(0,) * 7)
    operator = calls.operators["all_reduce"]
    with pytest.raises(fcc.UnsupportedError, match="all_reduce: FCC_ADDRESS: allowed only where this process launches"):
        calls.check(operator.enqueue(member.handle, operator.pack(in_=at, out=at), None, None))
    assert {name for name, operator in calls.operators.items() if operator.is_collective} == set(_collectives.ROWS)


def test_capture(run, device):
    if device == "cpu":
        pytest.skip("graphs are captured on GPUs only")
    run(1, capture_rank)


def capture_rank(comm):
    a, b = fcc.zeros(4, 8, comm=comm), fcc.zeros(8, 4, comm=comm)
    fcc.gemm_all_to_all(a, b, comm)
    comm.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(fcc.CaptureError):
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            fcc.gemm_all_to_all(a, b, comm)
    fcc.gemm_all_to_all(a, b, comm)
    comm.synchronize()


def test_every_folder_is_installed():
    """The package's folders are listed, so that nothing else of the source tree is installed."""
    text = (ROOT / "client" / "python" / "pyproject.toml").read_text()
    listed = set(re.findall(r'"([\w.]+)"', re.search(r"(?m)^packages = \[(.*)\]$", text)[1]))
    package = ROOT / "client" / "python" / "fcc"
    assert listed - {"fcc.examples"} == {".".join(["fcc", *file.parent.relative_to(package).parts]) for file in package.rglob("*.py")}
