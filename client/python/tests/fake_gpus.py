# SPDX-License-Identifier: MIT
"""Ranks on GPUs where there are none: the real daemon on the fake GPUs of the C tests (tests/fake_gpu), whose steps of programs and collectives have real results, and the
real library on their fake driver. torch is made to take their memory, which this process has mapped, for memory of the cpu: it computes at once, and a fake stream
is behind it as soon as the driver's stream has done what fccd's operators put onto it.

So what Python does for a rank on a GPU runs here, but not what torch does on one: its own kernels' order shows only in `events`.
"""
import contextlib
import ctypes
import functools
import os
import pathlib
import re
import tempfile

import pytest
from daemon import Daemon

CONTROL_BYTES = 4096  # more than struct fake_gpus has, whose first number is that of GPUs
GPUS = 2

events = []  # what was asked of streams, in this order


def built(build):
    """The plug-in and the driver. Skips the test where the C tests have not been built."""
    files = [pathlib.Path(build, "tests", *names) for names in (("fake_plugin", "cuda.so"), ("fake_driver", "libcuda.so.1"))]
    for file in files:
        if not file.exists():
            pytest.skip(f"{file} has not been built: `make test-python` does it")
    return files


class FakeGpus(Daemon):
    def __init__(self, compiles: bool = False) -> None:
        """compiles: steps of programs get kernels, by the fake compiler, without which ranks bind no programs."""
        super().__init__("cuda", *(() if compiles else ("--gpu-compiler", "none")))

    def __enter__(self) -> Daemon:
        self.plugins = tempfile.TemporaryDirectory(prefix="fcc-python-")
        plugin, driver = built(self.build)
        self.before = functools.partial(install, str(driver), self.plugins.name)
        pathlib.Path(self.plugins.name, "cuda.so").symlink_to(plugin.resolve())
        self.control = pathlib.Path(self.plugins.name, "control")
        self.control.write_bytes(GPUS.to_bytes(4, "little") + bytes(CONTROL_BYTES - 4))
        self.options += ["--plugin-dir", self.plugins.name, "--code-cache", str(pathlib.Path(self.plugins.name, "cache"))]
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        wrong = re.search(rb"[ -~]{8,}", self.control.read_bytes())  # fake_gpus.what_is_wrong
        self.plugins.cleanup()
        assert not wrong, f"the worker has called its GPUs wrongly: {wrong[0].decode()}"


class Stream:
    """The one that there is."""

    handle = 0
    driver = None
    cuda_stream = property(lambda self: Stream.handle)

    def __init__(self, *_):
        pass

    def synchronize(self):
        events.append("synchronize")
        assert Stream.driver.cuStreamSynchronize(ctypes.c_void_p(Stream.handle)) == 0

    def wait_event(self, event):
        events.append(f"wait {event.number}")


class Event:
    made = 0

    def __init__(self, *_):
        Event.made += 1
        self.number = Event.made

    def record(self, *_):
        events.append(f"record {self.number}")

    def query(self):
        events.append(f"query {self.number}")
        return Stream.driver.cuStreamSynchronize(ctypes.c_void_p(Stream.handle)) == 0


class Driver(ctypes.Structure):
    """struct fake_driver (tests/fake_gpu/fake_driver.h)."""

    _fields_ = [("fail", ctypes.c_int), ("gpus", ctypes.c_int), ("no_stream_words", ctypes.c_bool), ("capturing", ctypes.c_bool), ("hip_version", ctypes.c_int),
                *((name, ctypes.c_int) for name in ("contexts", "streams", "handles", "addresses", "mappings", "registered", "graphs", "objects",
                                                    "writes", "batches", "fills", "waits", "functions", "synchronized", "broken")),
                ("capture_begin", ctypes.CFUNCTYPE(None)), ("capture_end", ctypes.CFUNCTYPE(ctypes.c_void_p)),
                ("graph_launch", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)), ("graph_destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class Graph:
    """What fccd's operators put onto the stream within `with graph:`, as torch.cuda.graph() has it. What torch does there it does at once, and not in replays."""

    def __enter__(self):
        self.driver = Driver.in_dll(Stream.driver, "fake_driver")
        self.driver.capture_begin()
        return self

    def __exit__(self, *_):
        self.graph = self.driver.capture_end()

    def replay(self):
        self.driver.graph_launch(self.graph, Stream.handle)
        Stream().synchronize()

    def close(self):
        self.driver.graph_destroy(self.graph)


def install(driver, plugins):
    """Makes this process one with GPUs; before it joins. plugins: where it finds the plug-in by which it launches operators itself."""
    os.environ["FCC_PLUGIN_DIR"] = plugins
    import fcc._library
    import torch
    library = ctypes.CDLL(str(driver))  # which libfccclient finds by its name
    Stream.driver, handle = library, ctypes.c_void_p()
    library.cuCtxPushCurrent_v2(ctypes.c_void_p(1))
    assert library.cuStreamCreate(ctypes.byref(handle), 1) == 0
    Stream.handle = handle.value
    as_tensor = torch.as_tensor

    def of_memory(data, *arguments, **keywords):
        interface = getattr(data, "__cuda_array_interface__", None)
        if interface is None:
            return as_tensor(data, *arguments, **keywords)
        memory = (ctypes.c_uint8 * interface["shape"][0]).from_address(interface["data"][0])
        memory.owner = data
        return torch.frombuffer(memory, dtype=torch.uint8)

    def in_order(enqueue):
        """What torch does next it does at once."""
        def call(*arguments):
            status = enqueue(*arguments)
            if not capturing():
                library.cuStreamSynchronize(handle)
            return status
        return call
    state = Driver.in_dll(library, "fake_driver")
    capturing = lambda: state.capturing  # noqa: E731
    for name in ("program_enqueue", "program_refuse_enqueue", "program_scalars_enqueue"):
        setattr(fcc._library.library(), name, in_order(getattr(fcc._library.library(), name)))
    for operator in fcc._library.library().operators.values():
        for name in ("enqueue", "many_enqueue", "epilogue_enqueue"):
            if getattr(operator, name):
                setattr(operator, name, in_order(getattr(operator, name)))
    torch.as_tensor = of_memory
    torch.cuda.Stream, torch.cuda.Event = Stream, Event
    torch.cuda.current_stream = Stream
    torch.cuda.synchronize = lambda *_: Stream().synchronize()
    torch.cuda.device = torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.cuda.is_current_stream_capturing = capturing
    torch.cuda.current_device = torch._C._cuda_getDevice = lambda: None  # the cpu's index
    torch._C._cuda_getCurrentRawStream = lambda index: Stream.handle


