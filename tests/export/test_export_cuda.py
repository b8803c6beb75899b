"""Exports for CUDA without a GPU: what the launcher in C++ tells the driver is what the launcher in
Python tells it for the same call."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.fake import fake_driver
from tests.export.library import (
    CONTRACT,
    DRIVER,
    HERE,
    MACHINE,
    OK,
    PROGRAMS,
    Library,
    needs_compiler,
    write_export,
)
from tilewright.ir.bind import written_params
from tilewright.ir.dtype import dtype
from tilewright.targets.arrays import ArrayView, ProgramCheck
from tilewright.targets.cuda.launch import CudaModule, Form, Map, encode_scalar
from tilewright.targets.cuda.prepared import Prepared
from tilewright.targets.dlpack import row_major
from tilewright.tools.export.collect import collect

pytestmark = needs_compiler
KERNELS = ["scale", "rows", "open_product", "clustered", "nibbles", "two_steps"]
SIZES = ["N=256", "width=256"]
REAL = [p for p in (Path("/usr/local/cuda/include"),) if (p / "cuda.h").is_file()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    words = [w for k in KERNELS for w in ("--kernel", k)]
    words += [w for s in SIZES for w in ("--sizes", s)]
    return write_export(tmp_path_factory.mktemp("export") / "kernels", *words, "--arch", "sm_90a")


@pytest.fixture(
    scope="module", params=["stub", *(pytest.param(str(p), marks=pytest.mark.slow) for p in REAL)]
)
def library(folder, request, tmp_path_factory):
    """With the header of the tests, and with the real one where there is one."""
    include = HERE / "stub" if request.param == "stub" else request.param
    made = Library(folder, "-I", str(include), str(HERE / "stub" / "driver.cpp"))
    made.code.stub_said.restype = ctypes.c_char_p
    return made


@pytest.fixture(scope="module")
def builds():
    found, _ = collect(str(PROGRAMS), KERNELS, SIZES, ["cuda -arch=sm_90a"])
    return {each.name: each.builds[0] for each in found}


def array(kind, shape, at, strides=None):
    return ArrayView(at, shape, strides or row_major(shape), dtype(kind), 0)


def prepared(build, arguments):
    """The build that takes a call, with all that a launch needs of it."""
    code = build.executable
    general = code.otherwise or code
    program = general.given
    given = dict(zip((p.name for p in program.params), arguments, strict=True))
    views = {name: x for name, x in given.items() if isinstance(x, ArrayView)}
    kinds = {p.name: p.dtype for p in program.scalars}
    scalars = {name: encode_scalar(name, kind, given[name]) for name, kind in kinds.items()}
    sizes = ProgramCheck(program, written_params(program), general.record.align)(views)
    if general is not code and Form(code.module, *code.takes()).takes(views, sizes):
        return code, views, scalars, sizes
    return general, views, scalars, sizes


def by_python(build, arguments, stream):
    """What Python's launcher tells a driver that writes it down."""
    code, views, scalars, sizes = prepared(build, arguments)
    specs = {s.kernel: s for s in code.specs}
    api, found = fake_driver(1, **{name: {"params": s.sizes} for name, s in specs.items()})
    api.contexts.append(0xC0)
    module = CudaModule(code.cubin, code.specs, scratch=code.record.scratch, using=found)
    Prepared(module, views, scalars, sizes, stream).run()
    maps = [
        (e.kind, e.address, *([*part] for part in (e.sizes, e.strides, e.box, e.steps, e.rest)))
        for e in api.encoded
    ]
    launches = [
        (x.kernel, [*x.grid], [*x.block], x.shared, x.stream, [[i, [*v]] for i, v in x.attributes],
         _maps_named(specs[x.kernel], x.params, maps))
        for x in api.launches
    ]  # fmt: skip
    return launches, [d[1] for d in api.done if d[0] == "allocate"], api.limits_raised


def _maps_named(spec, params, maps):
    """The parameters' bytes, and of maps what they were encoded from."""
    return [
        maps[raw[0] - 1] if isinstance(p, Map) and raw[0] else [*raw]
        for p, raw in zip(spec.params, params, strict=True)
    ]


def by_cpp(library, name, build, arguments, stream):
    specs = {s.kernel: s for s in prepared(build, arguments)[0].specs}
    library.code.stub_reset(9, 0, 232448, 0)
    for spec in specs.values():
        sizes = (ctypes.c_int * len(spec.sizes))(*spec.sizes)
        library.code.stub_kernel(spec.kernel.encode(), sizes, len(sizes))
    assert library(name, *arguments, stream=stream) == OK, library.message
    said = [json.loads(line) for line in library.code.stub_said().decode().splitlines()]
    maps = [tuple(e["encode"]) for e in said if "encode" in e]
    launches = []
    for each in (e["launch"] for e in said if "launch" in e):
        kernel, grid, block, shared, at, attributes, params = each
        raw = [bytes(p) for p in params]
        named = _maps_named(specs[kernel], raw, maps)
        launches.append((kernel, grid, block, shared, at, attributes, named))
    allocated = [e["allocate"][0] for e in said if "allocate" in e]
    raised = [("MAX_DYNAMIC_SHARED_SIZE_BYTES", e["raise"][2]) for e in said if "raise" in e]
    return launches, allocated, raised


A, B, C = 0x1000_0000, 0x2000_0000, 0x3000_0000
CALLS = {
    "scale": [(array("float32", (n, 8), A), 2.5, array("float32", (n, 8), B))
              for n in (0, 1, 17, 4096)],
    "rows": [
        (array("float16", (n, 8), A, (s, 1)), f, None, array("float16", (n, 8), B, (s, 1)))
        for n, s, f in ((5, 8, 0), (100, 12, 3), (1, 16, 7))
    ],
    "open_product": [
        (array("float16", (m, k), A + 2 * o), array("float16", (n, k), B),
         array("float16", (m, n), C))
        for m, n, k, o in ((256, 512, 64, 0), (100, 264, 72, 0), (100, 264, 72, 1), (3, 5, 7, 0),
                           (1, 8, 8, 0), (0, 8, 8, 0), (300, 8, 0, 0))
    ],
    "clustered": [(array("float16", (256, 256), A), array("float16", (256, 256), B))],
    "nibbles": [(array("uint8", (n, 32), A), array("int32", (n, 64), B)) for n in (1, 33)],
    "two_steps": [(array("float16", (256, 64), A), array("float32", (256, 64), B))],
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_the_driver_hears_the_same(library, builds, name):
    launched = 0
    for i, arguments in enumerate(CALLS[name]):
        stream = 0 if i % 2 else 0x5A
        *python, raised = by_python(builds[name], arguments, stream)
        *cpp, cpp_raised = by_cpp(library, name, builds[name], arguments, stream)
        assert cpp == python
        assert cpp_raised in ([], raised)  # once: the module stays loaded
        launched += len(cpp[0])
    assert launched


def test_calls_that_use_every_recipe(library, builds):
    """So that the test above compares something."""

    def one(name, i=0):
        return by_cpp(library, name, builds[name], CALLS[name][i], 0)

    assert one("clustered")[0][0][5] == [[4, [2, 1, 1]]]
    launches, scratch, _ = one("two_steps")
    assert len(launches) == 2 and scratch
    aligned, other = one("open_product", 1)[0][0], one("open_product", 2)[0][0]
    assert any(isinstance(p, tuple) for p in aligned[6]) and aligned[3] > 48 * 1024
    assert not any(isinstance(p, tuple) for p in other[6])


def test_what_the_machine_refuses_is_said(library, folder):
    call = CALLS["scale"][1]
    reset = library.code.stub_reset
    cases = [
        ((9, 0), call[:1] + (2.5, array("float32", (1, 8), 64)), CONTRACT,
         "B is not in memory that the GPU knows"),
        ((9, 0), call[:1] + (2.5, array("float32", (1, 8), 1 << 46)), CONTRACT,
         "B is on another GPU (1)"),
        ((9, 0), (array("float32", (1, 9), A), 1.0, call[2]), CONTRACT,
         "wrong size in dimension 1"),
    ]  # fmt: skip
    for chip, arguments, status, text in cases:
        reset(*chip, 232448, 0)
        assert library("scale", *arguments) == status and text in library.message, library.message
    reset(9, 0, 232448, 3)
    assert library("scale", *call) == DRIVER and "cannot be launched: CUDA_ERROR" in library.message
    reset(9, 0, 232448, 2)
    assert library("two_steps", *CALLS["two_steps"][0]) == DRIVER
    assert "no memory for scratch" in library.message


def test_several_architectures_and_the_same_bytes(tmp_path):
    words = ["--kernel", "scale", "--arch", "sm_80", "--arch", "sm_90a", "--arch", "compute_90"]
    first = write_export(tmp_path / "a", *words)
    second = write_export(tmp_path / "b", *words)
    names = sorted(f.name for f in first.iterdir())
    assert {f"scale.{a}.0.cubin" for a in ("sm_80", "sm_90a")} < {*names}
    assert "scale.compute_90.0.ptx" in names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    made = Library(first, "-I", str(HERE / "stub"), str(HERE / "stub" / "driver.cpp"))
    made.code.stub_said.restype = ctypes.c_char_p
    sizes = (ctypes.c_int * 4)(8, 8, 4, 4)
    made.code.stub_kernel(b"scale_scale", sizes, 4)
    made.code.stub_reset(7, 5, 65536, 0)
    assert made("scale", *CALLS["scale"][1]) == MACHINE
    assert "exported for sm_80, sm_90a, compute_90; this GPU is sm_75" in made.message
    made.code.stub_reset(8, 9, 101376, 0)
    assert made("scale", *CALLS["scale"][1]) == OK, made.message
    said = json.loads(made.code.stub_said().decode().splitlines()[0])
    assert bytes(said["load"]) == (first / "scale.sm_80.0.cubin").read_bytes()[:64]


def test_the_manifest_has_the_recipes(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (found,) = (f for f in manifest["functions"] if f["name"] == "open_product")
    (arch,) = found["architectures"]
    aligned, general = arch["forms"]
    assert (
        aligned["when"]["multiples"] == {"columns": 8, "inner": 8} and not general["when"]["align"]
    )
    (launch,) = aligned["launches"]
    maps = [p for p in launch["parameters"] if "tensor_map" in p]
    assert {p["tensor_map"] for p in maps} >= {"A", "B"} and maps[0]["box"]
    assert launch["grid"] and launch["shared_bytes"] and launch["threads"] >= 128
    assert all(np.prod(p["box"]) for p in maps)
