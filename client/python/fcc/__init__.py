# SPDX-License-Identifier: MIT
"""fcc - fused computation-collectives for PyTorch, served by fccd.

    import fcc, torch                      # under torchrun, srun or mpirun
    comm = fcc.init()                      # all processes of the launcher; device="cuda" for GPUs
    layer = fcc.to_daemon(torch.nn.Linear(1024, 4096, bias=False))
    y = fcc.gemv_all_reduce(fcc.zeros(1, 1024), layer.weight)   # the sum over all ranks of x @ w.T

communicator.py: init(), Communicator. memory.py: tensors over the daemon's memory. functional.py: the operators, collectives.py: those
that compute nothing; ops.py, _collectives.py: the same as torch.ops.fcc.*; prepared.py: those that run again and again. nn: modules.
@program, Program: programs of computation and exchange (_programs, language). track: tensors over several ranks' memory, and rules by
which what is produced is sent. errors.py: what is raised. _private: starts fccd where none listens. distributed: the backend "fcc" of torch.distributed.
"""
import torch

from . import functional, language, nn
from ._place import Environment, environment, unique_id
from ._staging import forget_copies
from .communicator import Communicator, default, init
from .errors import (AbortedError, AlreadyJoinedError, ArgumentError, BusyError, CaptureError, CopyWarning, DriverError, Error,
                     ForkedError, IndexRangeError, LibraryError, NoDaemonError, NotFoundError, OutOfMemoryError,
                     PermissionDeniedError, ProtocolError, ShutdownError, TimeLimitError, TooManyError, UnreachableError,
                     UnsupportedError, WorkerLostError)
from ._programs.bound import BoundProgram
from ._programs.program import Program
from ._programs.running import CompiledProgram
from ._programs.tracing import program
from ._programs.values import In, InOut, Out, Tensor
from .functional import *  # noqa: F403: the operators
from .mem_pool import mem_pool
from .memory import empty, is_daemon_memory, to_daemon, zeros
from .nn import parallelize
from . import optim
from .prepared import PreparedOperator
from .track import RingAllGather, RingReduceScatter, Rule, Tracker, map_parts, output_map, signal_wait

if torch.distributed.is_available():
    from . import distributed  # noqa: F401: it registers the backend

__version__ = "0.1.0"

__all__ = [
    "AbortedError", "AlreadyJoinedError", "ArgumentError", "BoundProgram", "BusyError", "CaptureError", "Communicator", "CompiledProgram", "CopyWarning",
    "DriverError", "Environment", "Error", "ForkedError", "In", "InOut", "IndexRangeError", "LibraryError", "NoDaemonError", "NotFoundError",
    "Out", "OutOfMemoryError", "PermissionDeniedError", "PreparedOperator", "Program", "ProtocolError", "RingAllGather", "RingReduceScatter", "Rule",
    "ShutdownError", "Tensor", "TimeLimitError", "TooManyError", "Tracker", "UnreachableError", "UnsupportedError", "WorkerLostError", "default", "empty", "environment",
    "forget_copies", "init", "is_daemon_memory", "language", "map_parts", "mem_pool", "nn", "optim", "output_map", "parallelize", "program", "signal_wait", "to_daemon",
    "unique_id", "zeros", *functional.__all__,
]
