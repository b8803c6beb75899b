"""One program on several targets: the checking interpreter says what is right."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import CompileError, TilewrightError

Array = np.ndarray[Any, np.dtype[Any]]
Arguments = Callable[..., dict[str, Any]]

# How far float data may differ, in units of the program's coarsest type: some forty operations
# that round and functions of a few units each.
_SLACK = 40.0
SIGNED = -1.0  # a unit by which nothing differs, the signs of zeros included


_HOPPER = Target.parse("cuda")
# thread code as the interpreter runs it, with Hopper's features, with those of sm_80, and with
# producers of their own
THREADS = {
    "threads": _HOPPER,
    "threads-sm80": _HOPPER.like("sm_80"),
    "threads-roles": Target.parse("cuda -roles"),
}


@dataclass
class Verdict:
    """How a program fared on its targets.

    `kind`: `ok`; `illegal` (not a legal program: no fault of a target); `mismatch`, `crash`
    (an error that is not one of ours) or `refused` (one that is), of `target`.
    """

    kind: str
    target: str = ""
    detail: str = ""


Run = Callable[[dict[str, Any]], Mapping[str, Any]]  # from arguments to what they are afterwards


def runs(program: Program, target: str) -> list[tuple[str, Run]]:
    """What runs a program on a target, each with a word on it."""
    if target in THREADS:
        from tilewright.targets.cuda.backend import lower

        return [("", thread_code(lower(program, THREADS[target]).result))]
    # "cuda-build" compiles and runs nothing, for machines without a GPU
    kernel = CompiledKernel(program, target=target.removesuffix("-build"))
    if target.endswith("-build"):
        return []
    return [("", lambda given: run_kernel(kernel, given, program))]


def thread_code(program: Program) -> Run:
    """The thread code of the CUDA road, run by the interpreter: no GPU, and races show."""
    from tilewright import machine

    def run(given: dict[str, Any]) -> Mapping[str, Any]:
        machine.run_threads(program, given)
        return given

    return run


def against(
    program: Program,
    arguments: Arguments,
    cases: Sequence[Mapping[str, int]],
    target: str,
    wanted: Sequence[dict[str, Array]],
    unit: float,
    runs: Callable[[Program, str], list[tuple[str, Run]]] = runs,
) -> Verdict | None:
    """How a target differs from what the interpreter `wanted`; None where it does not."""
    try:
        ways = runs(program, target)
        for case, want in zip(cases, wanted, strict=True):
            for form, run in ways:
                got = run(arguments(**case))
                for name, array in want.items():
                    told = difference(array, got[name], unit)
                    if told:
                        return Verdict("mismatch", target, f"{form}{name} at {dict(case)}: {told}")
    except CompileError as error:
        # with a place it is a refusal; without one nobody meant to refuse
        meant = error.loc is not None or " " not in target
        return Verdict("refused" if meant else "crash", target, error.message)
    except TilewrightError as error:
        return Verdict("crash", target, f"{type(error).__name__}: {error.message}")
    except Exception as error:
        return Verdict("crash", target, internal(error))
    return None


def internal(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = next((f for f in reversed(frames) if "tilewright" in f.filename), frames[-1])
    place = own.filename.rpartition("tilewright/")[2]
    return f"{type(error).__name__}: {error} ({place}, {own.name})\n{traceback.format_exc()}"


def run_kernel(kernel: CompiledKernel, given: dict[str, Any], program: Program) -> dict[str, Array]:
    """The arrays after a call."""
    if kernel.target.kind == "cuda":
        return _run_on_device(kernel, given, program)
    kernel(**given)
    return {n: a for n, a in given.items() if isinstance(a, np.ndarray)}


def _run_on_device(
    kernel: CompiledKernel, given: dict[str, Any], program: Program
) -> dict[str, Array]:
    from tilewright.targets.arrays import ArrayView
    from tilewright.targets.cuda.driver import DeviceMemory, driver

    found = driver()
    device = found.device(found.current_ordinal())
    kinds = {t.name: t.dtype for t in program.tensors}
    there: dict[str, Any] = dict(given)
    with found.active(device):
        for name, dtype in kinds.items():
            array = np.ascontiguousarray(given[name])
            memory = DeviceMemory(found, device, max(array.nbytes, 1), 0)
            found.synchronize()
            strides = tuple(s // array.itemsize for s in array.strides)
            there[name] = ArrayView(
                memory.address, array.shape, strides, dtype, device.ordinal, 0, owner=memory
            )
            if array.nbytes:
                found.call(found.api.cuMemcpyHtoD(memory.address, array.ctypes.data, array.nbytes))
        kernel(*(there[p.name] for p in program.params))
        found.synchronize()
        results = {}
        for name in kinds:
            array = results[name] = np.empty_like(given[name], order="C")
            if array.nbytes:
                address = there[name].address
                found.call(found.api.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
    return results


def difference(want: Array, got: Array, unit: float = 0.0) -> str:
    """Where two arrays differ, in words, or ''. NaNs are equal, and so are zeros of either sign
    unless the unit is `SIGNED`."""
    if want.dtype.kind in "biu":
        wrong = want != got
    else:
        with np.errstate(all="ignore"):
            a, b = want.astype(np.float64), got.astype(np.float64)
            wrong = (a != b) & ~(np.isnan(a) & np.isnan(b))
            if unit == SIGNED:
                wrong |= (np.signbit(a) != np.signbit(b)) & ~np.isnan(a)
            elif unit and wrong.any():
                scale = 1.0 + np.abs(a[np.isfinite(a)]).max(initial=0.0)
                wrong &= ~(np.abs(a - b) <= _SLACK * unit * scale)
    if not wrong.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(wrong))
    count = int(wrong.sum())
    return f"{count} of {wrong.size} differ, first at {at}: {got[at]}, not {want[at]}"
