"""What the assembler would serialize: products by warpgroups stay asynchronous, waited for
earlier; by single warps only where nothing else helps."""

from __future__ import annotations

import pytest

from tests.passes.two_products import FORMS, two_products
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.targets.cuda import backend
from tilewright.targets.cuda.kernel import CudaKernel
from tilewright.targets.cuda.launch import Record
from tilewright.targets.cuda.nvrtc import NO_WARPGROUPS, Serialized
from zoo.attention.backward import keys_gradient

CUDA = Target.parse("cuda")
# forms that the assembler refuses with late waits, and its code
REFUSED = {
    "an accumulator under another product": "C7514",
    "an accumulator before both": "C7514",
    "two operands": "C7513",
    "an operand and an accumulator": "C7514",
}


def program(form: str, threads: int = 128) -> Program:
    return two_products.prim_func(form, threads=threads, steps=64).program


def remedy(kernel: CudaKernel) -> str | None:
    said = kernel.record.serialized
    return None if said is None else said.remedy


@pytest.mark.parametrize(("form", "threads"), [*((f, 128) for f in FORMS), ("two operands", 256)])
def test_registers_from_threads(form, threads):
    kernel = CudaKernel(program(form, threads), CUDA)
    assert remedy(kernel) == ("by iteration" if form in REFUSED else None)
    assert kernel.serialized is None and not kernel.compiled.problems()
    assert "wgmma.mma_async" in kernel.ptx and "mma.sync" not in kernel.ptx


@pytest.mark.parametrize("form", REFUSED)
def test_the_stricter_remedy_serves_too(form):
    kernel = CudaKernel(program(form), CUDA.choosing(waits="each"))
    assert remedy(kernel) is None and not kernel.compiled.problems()


@pytest.mark.parametrize("form", REFUSED)
def test_the_assembler_is_asked_first(form):
    """Later waits are better where they are possible: nobody else says where that is."""
    with pytest.raises(Serialized, match=REFUSED[form]):
        backend._compiled(backend.lower(program(form), CUDA), CUDA, {})


def test_a_choice_is_kept():
    kernel = CudaKernel(program("two operands"), CUDA.choosing(waits="late"))
    assert remedy(kernel) == NO_WARPGROUPS and kernel.serialized is not None
    assert "mma.sync" in kernel.ptx


def test_a_producer_leaves_before_warpgroups_do():
    """Where registers are what is missing: 256 of each of 256 threads."""
    given = keys_gradient.prim_func(
        1, 1, 1, 1024, 1024, 64, block_M=128, block_N=128, threads=256, dtype="bfloat16"
    ).program
    kernel = CudaKernel(given, CUDA)
    assert remedy(kernel) == "no producer" and "C7512" in kernel.record.serialized.message
    assert kernel.serialized is None and not kernel.compiled.problems()


def test_explained():
    kernel = CudaKernel(program("two operands"), CUDA)
    told = [why for why in kernel.trace.reasons.values() if "C7513" in why]
    assert len(told) == 2
    assert all(why.startswith("waited for by the end of an iteration: ") for why in told)


def test_remedies_in_turn(monkeypatch):
    """The mildest first; who is asked again later, from the cache, hears the same."""
    compile_cuda, tried = backend.compile_cuda, []

    def strict(source, *args, **kwargs):
        tried.append(source)
        if "wgmma" in source:
            raise Serialized("the assembler could not keep it: (C7513) …")
        return compile_cuda(source, *args, **kwargs)

    monkeypatch.setattr(backend, "compile_cuda", strict)
    kernel = CudaKernel(program("two operands"), CUDA)
    waits = [[w for w in "012" if f"wait_wgmma<{w}>" in source] for source in tried]
    assert waits == [["0", "1"], ["0", "1"], ["0"], ["0", "1"], []]
    assert tried[3] == tried[1]  # no producer is there in any case
    assert len(set(tried)) == 4 and remedy(kernel) == NO_WARPGROUPS

    kept = Record.from_json(kernel.record.to_json())
    assert kept.serialized is not None and kept.serialized.remedy == NO_WARPGROUPS
    assert kept.serialized.message == kernel.serialized.message
    again = CudaKernel(
        kernel.given, CUDA, found=(kept, kernel.compiled, kernel.source)
    )  # fmt: skip
    assert again.trace.reasons == kernel.trace.reasons
    assert again.trace.result == kernel.trace.result
