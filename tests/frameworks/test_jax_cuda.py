"""Handlers for CUDA without a GPU: what they tell the driver is what Python's launcher tells it."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

from tests.cuda.fake import fake_driver
from tests.export import programs
from tests.export.library import PROGRAMS
from tests.export.test_export_cuda import CALLS, KERNELS, SIZES, by_python, prepared
from tests.frameworks.frame import Frame
from tilewright.frameworks import jax_call, jax_frame
from tilewright.ir.buffer import Buffer
from tilewright.targets.arrays import ArrayView
from tilewright.targets.cuda.launch import CudaModule, Map
from tilewright.tools.export.collect import collect

# JAX's arrays are contiguous
NAMES = [name for name in KERNELS if name != "rows"]


@pytest.fixture(scope="module", autouse=True)
def version():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_frame, "version", lambda: (0, 1))
        yield


@pytest.fixture(scope="module")
def builds():
    found, _ = collect(str(PROGRAMS), NAMES, SIZES, ["cuda -arch=sm_90a"])
    return {each.name: each.builds[0] for each in found}


def handler_for(build, arguments, found):
    """The handler of a call, and where its buffers are: what the kernel writes is made."""
    code, program = copy.copy(build.executable), build.program
    code.module = CudaModule(code.cubin, code.specs, scratch=code.record.scratch, using=found)
    if code.otherwise:
        code.otherwise = other = copy.copy(code.otherwise)
        other.module = CudaModule(other.cubin, other.specs, scratch=other.record.scratch,
                                  using=found)  # fmt: skip
    given = dict(zip((p.name for p in program.params), arguments, strict=True))
    arrays, tensors, results, addresses = {}, {}, [], []
    for p in program.params:
        if not isinstance(p, Buffer):
            continue
        x = given[p.name]
        if p.name in build.launcher.written:
            tensors[p.name] = "results", len(results)
            results.append((x.shape, x.dtype.numpy))
            addresses.append(x.address)
        else:
            tensors[p.name] = "args", len(arrays)
            arrays[p.name] = SimpleNamespace(shape=x.shape, dtype=x.dtype.numpy, at=x.address)
    _, views, scalars, _ = prepared(build, arguments)
    sizes = build.launcher.check.sizes(views)
    integers = {s.name: int(given[s.name]) for s in program.scalars if s.dtype.is_int}
    made = jax_call._cuda(code, program, arrays, sizes, integers, tensors, results, len(scalars))
    bits = [int.from_bytes(raw, "little") for raw in scalars.values()]
    return made, ([a.at for a in arrays.values()], addresses, bits), len(results)


def by_handler(build, arguments, stream, devices=1, device=0):
    code = prepared(build, arguments)[0]
    specs = {s.kernel: s for s in code.specs}
    api, found = fake_driver(devices, **{n: {"params": s.sizes} for n, s in specs.items()})
    made, (given, addresses, bits), count = handler_for(build, arguments, found)
    while len(addresses) < count:  # scratch, of which the first lies where the fake driver has it
        addresses.append(0x7000_0000)
    api.contexts.append(0xC0)
    frame = Frame(given, addresses, bits, stream, device)
    assert frame.call(made), frame.message
    maps = [(e.kind, e.address, *([*part] for part in (e.sizes, e.strides, e.box, e.steps, e.rest)))
            for e in api.encoded]  # fmt: skip
    launches = []
    for x in api.launches:
        params = [
            maps[raw[0] - 1] if isinstance(p, Map) and raw[0] else [*raw]
            for p, raw in zip(specs[x.kernel].params, x.params, strict=True)
        ]
        launches.append((x.kernel, [*x.grid], [*x.block], x.shared, x.stream,
                         [[i, [*v]] for i, v in x.attributes], params))  # fmt: skip
    return launches, api


@pytest.mark.parametrize("name", NAMES)
def test_the_driver_hears_the_same(builds, name):
    for i, arguments in enumerate(CALLS[name]):
        if any(isinstance(x, ArrayView) and x.address % 16 for x in arguments):
            continue  # XLA's buffers are aligned
        stream = 0 if i % 2 else 0x5A
        found, _ = by_handler(builds[name], arguments, stream)
        assert found == by_python(builds[name], arguments, stream)[0]


def test_the_gpu_of_a_call_has_functions_of_its_own(builds):
    found, api = by_handler(builds["scale"], CALLS["scale"][1], 7, devices=2, device=1)
    assert len(found) == 1 and api.loads == 2


def test_what_goes_wrong_is_told(builds):
    build, arguments = builds["open_product"], CALLS["open_product"][0]
    specs = {s.kernel: {"params": s.sizes} for s in build.executable.specs}
    api, found = fake_driver(1, **specs)
    made, (given, addresses, bits), _ = handler_for(build, arguments, found)
    api.contexts.append(0xC0)
    frame = Frame(given[:1], addresses, bits)
    assert not frame.call(made) and "other buffers" in frame.message
    frame = Frame([given[0] + 2, given[1]], addresses, bits)
    assert not frame.call(made) and "misaligned" in frame.message
    api.status = 1
    frame = Frame(given, addresses, bits)
    assert not frame.call(made) and "could not be launched: grid (8, 4, 1)" in frame.message
    assert programs.open_product.program.name in frame.message
