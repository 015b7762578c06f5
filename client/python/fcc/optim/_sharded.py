# SPDX-License-Identifier: MIT
"""What the optimizers have in common: units of parameters, each of which one program updates."""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .. import collectives, communicator
from .._programs.bound import BoundProgram
from .._programs.program import Program
from .._programs.running import CompiledProgram, changed_note
from .._programs.turns import capture_check
from .._names import Called
from .._communicator.refusals import refuse
from .._communicator.waits import noop
from ..communicator import Communicator
from ..errors import ArgumentError, CaptureError, Error
from ..memory import empty

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LENGTHS = (r"\bx: elements: rank (\d+) has (\d+), rank (\d+) has (\d+)",
            lambda found: f"params: rank {found[1]} has {int(found[2]) - _AGREED}, rank {found[3]} has {int(found[4]) - _AGREED}")
_AGREED = 4  # numbers that the ranks compare besides those of each parameter
_ALIGNED = 16  # elements: parameters begin at multiples of it


def use_with(model: Any) -> None:
    """Lets torch's DistributedDataParallel leave gradients as this rank has them, for an optimizer of fcc.optim to reduce.

    Raises: ArgumentError for another model, which needs no call of this: its gradients are this rank's."""
    if not hasattr(model, "register_comm_hook"):
        raise ArgumentError(f"use_with: model: {type(model).__name__}: allowed is a torch.nn.parallel.DistributedDataParallel",
                            remedy="Leave the call out: gradients of other models are those of their rank, as fcc.optim takes them.")
    _unreduced.__annotations__.update(bucket=torch.distributed.GradBucket)  # torch looks at it; there is none in builds without distributed
    model.register_comm_hook(None, _unreduced)


def _unreduced(_: object, bucket: Any):  # type: ignore[no-untyped-def]  # torch refuses other annotations
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _steps(state: dict[str, Any]) -> int:
    """How many steps a parameter has behind it. torch's SGD does not say; that there is a state says that it is no first step."""
    return int(state.get("step", any(isinstance(value, Tensor) for value in state.values())))


Check = tuple[str, Any, str, Callable[[Any], bool]]  # an argument's name, its value, what is allowed in words, and whether a value is
NOT_NEGATIVE: tuple[str, Callable[[Any], bool]] = ("0 and more", lambda value: float(value) >= 0)
BETAS: tuple[str, Callable[[Any], bool]] = ("two numbers, 0 to less than 1", lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value))
BOOLEAN: tuple[str, Callable[[Any], bool]] = ("True and False", lambda value: isinstance(value, bool))
ONLY_FALSE: tuple[str, Callable[[Any], bool]] = ("False", lambda value: not value)


def arguments_check(optimizer: str, *checks: Check) -> None:
    for name, value, allowed, fits in checks:
        try:
            well = fits(value)
        except (RuntimeError, TypeError, ValueError):  # of a value of another kind
            well = False
        if not well:
            raise ArgumentError(f"{optimizer}: {name}: {value!r:.40}: allowed: {allowed}")


_PART = 1 << 20  # elements that are looked at together


def _digest(p: Tensor) -> int:
    """A number that is the same on all ranks if the parameter's bits are."""
    bits = p.detach().reshape(-1).view(torch.int32 if p.dtype == torch.float32 else torch.int16)
    found = 0
    for part in bits.split(_PART):
        found = (found * 1000003 + int(part.long().mul_(torch.arange(1, len(part) + 1, device=part.device)).sum())) % (1 << 55)
    return found


def _lies_in(x: Tensor, view: Tensor) -> bool:
    """Whether a tensor of the view's shape has its memory, element by element: a transpose of it has not."""
    return x.data_ptr() == view.data_ptr() and x.stride() == view.stride() and not x.is_neg()


def _take(pairs: list[tuple[Tensor, Tensor]], flat: Tensor) -> None:
    """Copies tensors to views of flat. What lies in flat, too, elsewhere or otherwise, is read before any of it is written."""
    memory = flat.untyped_storage().data_ptr()
    ready = [(view, x.clone() if x.untyped_storage().data_ptr() == memory else x) for view, x in pairs]
    torch._foreach_copy_([view for view, _ in ready], [x for _, x in ready])  # on GPUs in few kernels


class Unit:
    """Parameters of one group and dtype that have been updated equally often: one tensor in the daemon's memory, and one program."""

    def __init__(self, owner: ShardedOptimizer, group: dict[str, Any], parameters: list[Tensor], step: int) -> None:
        self.group, self.parameters, self.step, self.comm = group, parameters, step, owner.comm
        self.begins: list[int] = []
        n = 0
        for p in parameters:
            self.begins.append(n)
            n += -(-p.numel() // _ALIGNED) * _ALIGNED
        self.size, dtype = n, parameters[0].dtype
        self.names, self.way = list(owner._state_names(group)), owner._way(group)
        self.mixed = dtype != torch.float32
        self.run: CompiledProgram = owner._program(group, {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]).compile(
            self.comm, bound=None if owner._capturable else False, N=n, **owner._sizes(len(parameters)))
        self.part = self.run.elements(self.names[0]) if self.names else self.run.elements("w") if self.mixed else 0
        self.first = n * self.comm.rank // self.comm.size
        self.versions = [-1] * len(parameters)
        owner._made(self)

    def fill(self, loaded: dict[Tensor, dict[str, Any]], names: dict[str, str]) -> None:
        """Makes the memory: parameters move into it, and the state is what was loaded."""
        self.flat: dict[str, Tensor] = {name: self.run.empty(name).zero_() for name in ("g", "p", *self.names, *(["w"] if self.mixed else []))}
        self.views = {name: [self.flat[name][b:b + p.numel()].view(p.shape) for b, p in zip(self.begins, self.parameters)] for name in ("g", "p")}
        self.parameters_take()
        for i, p in enumerate(self.parameters):
            own, of = self.slice_of(i)
            for name in (*self.names, *(["w"] if self.mixed else [])):
                value = loaded.get(p, {}).get(names[name])
                if isinstance(value, Tensor):
                    self.flat[name][own] = value.reshape(-1)[of].float()

    def slice_of(self, i: int) -> tuple[slice, slice]:
        """Of parameter i: where in this rank's slice, and where in the parameter, the elements are that this rank has the state of."""
        begin, end = self.begins[i], self.begins[i] + self.parameters[i].numel()
        low = max(begin, self.first)
        high = max(low, min(end, self.first + self.part))
        return slice(low - self.first, high - self.first), slice(low - begin, high - begin)

    def parameters_take(self) -> None:
        """Parameters that lie elsewhere become views; the master is what they are."""
        moved = [i for i, p in enumerate(self.parameters) if p.numel() and not _lies_in(p, self.views["p"][i])]
        if moved:
            _take([(self.views["p"][i], self.parameters[i].detach()) for i in moved], self.flat["p"])
        for i in moved:
            self.parameters[i].data = self.views["p"][i]
            self.versions[i] = -1
        for i, p in enumerate(self.parameters):
            if self.mixed and self.versions[i] != p._version:
                own, of = self.slice_of(i)
                self.flat["w"][own] = self.views["p"][i].reshape(-1)[of].float()
            self.versions[i] = p._version

    def gradients_take(self, unscale: float, in_place: bool) -> None:
        moved = [(view, p) for view, p in zip(self.views["g"], self.parameters) if p.grad is not None and p.numel() and not _lies_in(p.grad, view)]
        if moved:
            _take([(view, p.grad) for view, p in moved if p.grad is not None], self.flat["g"])
        if in_place:
            for view, p in moved:
                p.grad = view
        for view, p in zip(self.views["g"], self.parameters):
            if p.grad is None:
                view.zero_()
        if unscale != 1:
            self.flat["g"].mul_(unscale)

    def bind(self, numbers: dict[str, float]) -> None:
        """From now on runs are put onto the current stream. Collective."""
        self.run = self.run.bind(**self.flat, scale=1, **numbers)

    def whole(self, name: str) -> Tensor:
        """The state of all ranks. Collective."""
        counts = [self.size * (r + 1) // self.comm.size - self.size * r // self.comm.size for r in range(self.comm.size)]
        return collectives.all_gather(self.flat[name], self.comm, counts=counts)[:self.size]


class ShardedOptimizer(torch.optim.Optimizer):
    """The base of fcc.optim's optimizers."""

    _step_supports_amp_scaling = True  # torch.amp.GradScaler leaves gradients scaled, and says so

    def __init__(self, params: Any, defaults: dict[str, Any], comm: Communicator | None, reduction: str, grads_in_place: bool, capturable: bool) -> None:
        self.comm = communicator.chosen(comm, type(self).__name__)
        if reduction not in ("mean", "sum"):
            raise ArgumentError(f"{type(self).__name__}: reduction: {reduction!r:.40}: allowed are \"mean\" and \"sum\"", rank=self.comm.rank)
        self._reduction, self._in_place, self._capturable = reduction, grads_in_place, capturable
        self._had: dict[int, bool] = {}  # capturable: what the last step that all ranks have agreed on found (_agreed())
        self._running: list[Unit] = []  # ... and the units that it has updated
        self._captured: list[Unit] = []  # whose runs are in graphs
        self._units: list[Unit] = []
        self._programs: dict[Any, Program] = {}
        self._loaded: dict[Tensor, dict[str, Any]] = {}
        super().__init__(params, defaults)

    # ---- what each optimizer says ----

    def _state_names(self, group: dict[str, Any]) -> Iterable[str]:
        raise NotImplementedError

    def _torch_names(self) -> dict[str, str]:
        raise NotImplementedError

    def _program(self, group: dict[str, Any], dtype: str) -> Program:
        raise NotImplementedError

    def _numbers(self, group: dict[str, Any], step: int) -> dict[str, float]:
        raise NotImplementedError

    def _way(self, group: dict[str, Any]) -> tuple[bool, ...]:
        """What the program's text depends on, which the group may have otherwise later."""
        return ()

    _most: int | None = None  # parameters of a unit; None: any number

    def _sizes(self, parameters: int) -> dict[str, int]:
        """The program's sizes besides N, for so many parameters."""
        return {}

    def _made(self, unit: Unit) -> None:
        """The unit's program is there."""

    # ---- units ----

    def _wrong(self, group: dict[str, Any]) -> None:
        made = {id(p): view for unit in self._units for p, view in zip(unit.parameters, unit.views["p"])}
        for p in group["params"]:
            view = made.get(id(p), p)
            if p.shape != view.shape or p.dtype != view.dtype:
                raise ArgumentError(f"params: {p.dtype}, {list(p.shape)}: it was {view.dtype}, {list(view.shape)} in the step before: allowed is a new optimizer, "
                                    "or another torch.nn.Parameter by add_param_group()")
            if p.dtype not in _DTYPES or p.layout != torch.strided or p.device != self.comm.device:
                raise ArgumentError(f"params: {p.dtype}, {p.layout} on {p.device}: allowed are dense float32, float16, bfloat16 on {self.comm.device}")
            if p.grad is not None and p.grad.layout != torch.strided:
                raise ArgumentError(f"params: a gradient of {p.grad.layout}: allowed are dense ones")

    def _agreed(self, unscale: float, found_inf: bool) -> tuple[dict[Tensor, bool], bool]:
        """Which parameters have a gradient on any rank, and whether a rank has found an infinity. All ranks' numbers are the same, or it is an error."""
        everything = [p for group in self.param_groups for p in group["params"]]
        steps = {id(p): unit.step for unit in self._units for p in unit.parameters}
        said = repr([[len(group["params"]), {k: float(v) if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}] for group in self.param_groups]
                    + [(tuple(p.shape), str(p.dtype), steps.get(id(p), _steps(self._loaded.get(p, {})))) for p in everything])
        digest = int.from_bytes(hashlib.sha256(said.encode()).digest()[:7], "little")
        earlier = self._earlier()
        mine = torch.tensor([digest, -digest, int(found_inf), int(earlier is not None), *(int(p.grad is not None) for p in everything)], device="cpu")
        try:
            for group in self.param_groups:
                self._wrong(group)
        except ArgumentError as e:
            e.reason = f"rank {self.comm.rank}: {type(self).__name__}: {e.reason}"
            e.args = (e.reason,)
            raise refuse(self.comm, "all_reduce", e) from None
        try:
            found = self._greatest(mine)
        except ArgumentError as e:  # of other lengths
            name = type(self).__name__
            error = e.renamed(Called(name, {"all_reduce": (_LENGTHS,)}), self.comm.rank)
            error.reason = error.reason.replace(f"{name}: {name}: ", f"{name}: ")  # of another rank's, which is in these terms
            error.args = (error.reason,)
            raise error from None
        if found[3]:
            raise earlier or ArgumentError(f"{type(self).__name__}: another rank has the error of an earlier call, which it raises now", rank=self.comm.rank)
        if found[0] != -found[1]:
            raise ArgumentError(f"{type(self).__name__}: the ranks' param_groups differ: allowed are the same numbers (lr, ...), shapes, dtypes and steps on all ranks", rank=self.comm.rank)
        return dict(zip(everything, map(bool, found[_AGREED:]))), bool(found[2])

    def _greatest(self, mine: Tensor) -> list[int]:
        """Of each number the greatest that a rank has. Collective."""
        found = collectives.all_reduce(empty(len(mine), dtype=mine.dtype, comm=self.comm).copy_(mine), self.comm, reduction="max")
        try:
            self.comm._settle()
        except Error as e:  # on a GPU
            e.earlier = False  # it is the call's: those of earlier ones have been raised
            raise
        return found.tolist()

    def _earlier(self) -> Error | None:
        """The error of an operator on the GPU that no call has raised yet. Ranks find one in different calls: so all raise it together."""
        try:
            self.comm.synchronize()
        except Error as e:
            return e
        return None

    def _same(self, fresh: list[Tensor]) -> None:
        """Refuses parameters that differ between the ranks: each rank would update a slice of another model. Collective."""
        if not fresh:
            return
        digests = torch.tensor([_digest(p) for p in fresh], device="cpu")
        found = self._greatest(torch.cat([digests, -digests]))
        for p, most, least in zip(fresh, found, found[len(fresh):]):
            if most != -least:
                number = next(i for i, q in enumerate(q for group in self.param_groups for q in group["params"]) if q is p)
                raise ArgumentError(f"{type(self).__name__}: params: number {number}, {list(p.shape)}: the ranks have other values: allowed are the same on all ranks",
                                    rank=self.comm.rank, remedy="Seed all ranks alike (torch.manual_seed()), or broadcast the parameters before: "
                                    "p.data.copy_(fcc.broadcast(p.data)). Parameters that are spread over the ranks, as those of fcc.nn and fcc.parallelize() "
                                    "are, have torch.optim's optimizers, or comm= of ranks that have the same part.")

    def _arrange(self, has: dict[Tensor, bool]) -> None:
        """Units for all parameters with a gradient, so that each unit has only such or none. What is to be cut is made anew, with its state."""
        again: list[tuple[dict[str, Any], Tensor, int]] = []
        kept = []
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        for unit in self._units:
            answers, groups = {has.get(p) for p in unit.parameters}, [group_of.get(id(p)) for p in unit.parameters]
            first = groups[0]
            if len(answers) == 1 and first is not None and unit.way == self._way(first) and all(group is first for group in groups):
                unit.group = first  # which may be another dictionary with these parameters
                kept.append(unit)
                continue
            self._state_keep(unit)
            again += [(group, p, unit.step) for p, group in zip(unit.parameters, groups) if group is not None]
        known = {id(p) for unit in self._units for p in unit.parameters}
        fresh = [(group, p) for group in self.param_groups for p in group["params"] if id(p) not in known and has[p]]
        self._same([p for _, p in fresh])
        again += [(group, p, _steps(self._loaded.get(p, {}))) for group, p in fresh]
        self._units = kept
        numbers = {id(group): number for number, group in enumerate(self.param_groups)}  # == compares their tensors
        sorts: dict[tuple, list[Tensor]] = {}
        made: list[Unit] = []
        for group, p, step in again:
            sorts.setdefault((numbers[id(group)], p.dtype, step, has[p]), []).append(p)
        for (g, _, step, _), parameters in [(sort, some[i:i + (self._most or len(some))]) for sort, some in sorts.items()
                                            for i in range(0, len(some), self._most or len(some))]:
            made.append(Unit(self, self.param_groups[g], parameters, step))
            try:
                made[-1].fill(self._loaded, self._torch_names())
            except Exception as e:  # the others come to the next program, or to the noop
                raise refuse(self.comm, "noop", e)
            if self._capturable:
                made[-1].bind(self._numbers(made[-1].group, step + 1))
        if made:
            noop(self.comm.member)  # all ranks have made all units, or none has any
        self._units += made
        for unit in made:
            for p in unit.parameters:
                self._loaded.pop(p, None)

    def _state_keep(self, unit: Unit) -> None:
        """The unit's state, of all ranks, as what was loaded. Collective."""
        found = {name: unit.whole(name) for name in (*unit.names, *(["w"] if unit.mixed else []))}
        for i, p in enumerate(unit.parameters):
            b = unit.begins[i]
            self._loaded[p] = {"step": torch.tensor(float(unit.step), device="cpu"),
                               **{self._torch_names()[name]: whole[b:b + p.numel()].view(p.shape).clone() for name, whole in found.items()}}

    @torch.compiler.disable  # a compiled function is cut here
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step. Collective."""
        loss = None
        if not self._capturable:
            capture_check(self.comm, type(self).__name__, "with capturable=True a step is captured; or leave it out of the capture")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capturing = self._capturable and self.comm.member.on_gpu and torch.cuda.is_current_stream_capturing()
        if self._capturable and self._units:
            change = self._changed(capturing)
            if change is None:
                self._enqueue(capturing)
                return loss
        else:
            change = "no step has been made yet, or none since a state was loaded"
        if capturing:
            raise CaptureError(f"rank {self.comm.rank}: {type(self).__name__}: the stream is being captured into a graph, and {change}: not allowed", rank=self.comm.rank,
                               remedy="The ranks agree in a step outside of the capture: make one like it before.")
        scale, inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        unscale = 1.0 if scale is None else 1 / float(scale)
        has, infinite = self._agreed(unscale, inf is not None and bool(inf))
        if infinite:
            return loss
        self._arrange(has)
        units = [unit for unit in self._units if has[unit.parameters[0]]]
        try:
            numbers_of = [self._numbers(unit.group, unit.step + 1) for unit in units]
        except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as e:  # all ranks have the same, and nothing has run yet
            raise ArgumentError(f"{type(self).__name__}: param_groups: {type(e).__name__}: {e}: allowed are numbers", rank=self.comm.rank) from None
        for unit, numbers in zip(units, numbers_of):
            self._update(unit, numbers, unscale, False)
        if self._capturable:
            self._had, self._running = {id(p): p.grad is not None for p in has}, units
        return loss

    def _scale(self, unit: Unit) -> float:
        return (-1 if unit.group.get("maximize") else 1) / (self.comm.size if self._reduction == "mean" else 1)

    def _update(self, unit: Unit, numbers: dict[str, float], unscale: float, capturing: bool) -> None:
        unit.parameters_take()
        unit.gradients_take(unscale, self._in_place and not capturing)
        if self._capturable:
            unit.run(scale=self._scale(unit), **numbers)
        else:
            unit.run(**unit.flat, scale=self._scale(unit), **numbers)
        unit.step += not capturing  # a run of a graph is counted by advance()
        changed_note(unit.parameters)
        unit.versions = [p._version for p in unit.parameters]

    # ---- capturable: steps that this process puts onto the stream, without a word to the others ----

    def _changed(self, capturing: bool) -> str | None:
        """Why the ranks have to agree anew; None: all is as in the step on which they did."""
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            return "a GradScaler is in use"
        everything = [p for group in self.param_groups for p in group["params"]]
        if {id(p): p.grad is not None for p in everything} != self._had:
            return "other parameters have gradients than in the step before"
        groups = {id(group): group for group in self.param_groups}
        for unit in self._units:
            if groups.get(id(unit.group)) is not unit.group or unit.way != self._way(unit.group):
                return "param_groups are others than in the step before"
            for i, p in enumerate(unit.parameters):
                view = unit.views["p"][i]
                if p.shape != view.shape or p.dtype != view.dtype or p.numel() and not _lies_in(p, view):
                    return "a parameter lies elsewhere than in the step before"
                if capturing and unit.mixed and unit.versions[i] != p._version:
                    return "a parameter has been changed since the step before"
        return None

    def _enqueue(self, capturing: bool) -> None:
        try:
            numbers_of = [self._numbers(unit.group, unit.step + 1) for unit in self._running]
        except Exception as e:
            for unit in self._running:  # the other ranks run them all
                assert isinstance(unit.run, BoundProgram)
                unit.run.refused(e)
            raise
        for unit, numbers in zip(self._running, numbers_of):
            self._update(unit, numbers, 1.0, capturing)
        if capturing:
            self._captured = self._running

    @torch.no_grad()
    def advance(self) -> None:
        """capturable: counts one step of a graph that has step() in it, and puts its numbers (lr, the corrections of step t) onto the current stream: before each replay(),
        on the same stream. Not collective; all ranks do it."""
        if not self._captured:
            raise ArgumentError(f"{type(self).__name__}: advance: no step has been captured: allowed behind a capture of step(), with capturable=True", rank=self.comm.rank)
        if any(unit not in self._units for unit in self._captured):
            raise ArgumentError(f"{type(self).__name__}: advance: since the capture a state was loaded, or parameters have moved, or others have gradients: allowed is a new capture",
                                rank=self.comm.rank)
        for unit in self._captured:
            assert isinstance(unit.run, BoundProgram)
            unit.run.set(scale=self._scale(unit), **self._numbers(unit.group, unit.step + 1))
            unit.step += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. With grads_in_place and set_to_none=False gradients are views of the daemon's memory, so that a step copies none; what has no gradient
        gets none, so that the next step skips it."""
        if self._in_place and not set_to_none:
            for unit in self._units:
                for p, view in zip(unit.parameters, unit.views["g"]):
                    p.grad = None if p.grad is None else view
        super().zero_grad(set_to_none)

    # ---- checkpoints ----

    def __getstate__(self) -> Any:
        raise TypeError("an optimizer of fcc.optim belongs to its communicator and can be neither copied nor pickled: its state_dict() can")

    def state_dict(self) -> dict[str, Any]:
        """torch.optim's, of all ranks' state. Collective."""
        before = dict(self._loaded)
        for unit in self._units:
            self._state_keep(unit)
        try:
            for p, state in self._loaded.items():
                self.state[p] = state
            return super().state_dict()
        finally:
            self.state.clear()
            self._loaded = before

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what state_dict() has made, or torch.optim's of the same class. Each rank by itself; state comes into force with the next step."""
        if not isinstance(state_dict, dict) or not isinstance(state_dict.get("state"), dict) or not isinstance(state_dict.get("param_groups"), list):
            raise ArgumentError(f"{type(self).__name__}: load_state_dict: {type(state_dict).__name__}: allowed is what an optimizer's state_dict() has made", rank=self.comm.rank)
        super().load_state_dict(state_dict)
        order = [i for group in state_dict["param_groups"] for i in group["params"]]
        own = [p for group in self.param_groups for p in group["params"]]
        self.state.clear()
        self._units = []
        self._loaded = {p: self._state_checked(p, i, state_dict["state"][i]) for i, p in zip(order, own) if i in state_dict["state"]}

    def _state_checked(self, p: Tensor, number: int, state: dict[str, Any]) -> dict[str, Any]:
        """What was loaded for a parameter. torch takes anything, and finds it wrong in a step, or never."""
        where = f"{type(self).__name__}: load_state_dict: parameter {number}: "
        try:
            steps = float(state.get("step", 0))
        except (RuntimeError, TypeError, ValueError):
            steps = -1
        if not steps >= 0 or steps != int(min(steps, 1 << 53)):
            raise ArgumentError(f"{where}step: {state['step']!r:.40}: allowed are whole numbers, 0 and more", rank=self.comm.rank)
        for name in self._torch_names().values():
            value = state.get(name)
            if value is not None and (not isinstance(value, Tensor) or value.shape != p.shape):
                found = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__} {value!r:.40}"
                raise ArgumentError(f"{where}{name}: {found}: allowed is a tensor of the parameter's shape, {list(p.shape)}", rank=self.comm.rank)
        return dict(state)
