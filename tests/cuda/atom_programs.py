"""Small scheduled programs, one per matrix instruction: run on the thread machine, compiled here,
and run on a GPU. Each knows what it computes on small integers, where every sum is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.atoms import MATRIX_TYPES, matrix_fragments
from tilewright.ir.dtype import dtype
from tilewright.ir.layout.fragment import Fragment, repeat, spatial, wgmma_a_operand
from tilewright.ir.op import Program
from tilewright.ir.text import parse_program

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """`text` of a program; `tensors` are its parameters' (shape, type), inputs first; `outputs`
    compute the others from the inputs as float64. `sass` and `ptx` must occur in the code."""

    name: str
    text: str
    tensors: dict[str, tuple[tuple[int, ...], str]]
    outputs: dict[str, Callable[[Arrays], np.ndarray]]
    ptx: dict[str, int] = field(default_factory=dict)
    sass: str = ""
    threads: int = 128

    @property
    def program(self) -> Program:
        return parse_program(self.text, f"{self.name}.tw")

    def inputs(self, seed: int = 0) -> Arrays:
        rng = np.random.default_rng(seed)
        found = {}
        for name, (shape, kind) in self.tensors.items():
            if name not in self.outputs:
                low, high = {"int8": (-128, 128), "uint8": (0, 256)}.get(kind, (-3, 4))
                found[name] = rng.integers(low, high, shape).astype(dtype(kind).numpy)
        return found

    def wanted(self, inputs: Arrays) -> Arrays:
        """What the outputs must be, in their types."""
        wide = {name: array.astype(np.float64) for name, array in inputs.items()}
        return {
            name: compute(wide).astype(dtype(self.tensors[name][1]).numpy)
            for name, compute in self.outputs.items()
        }


def _program(name: str, tensors: Any, shared: list[str], body: list[str], threads: int) -> str:
    params = [f"param {n}: {kind}{list(shape)} global" for n, (shape, kind) in tensors.items()]
    lines = [
        f"program {name} {{",
        *params,
        f"kernel main grid bx in 1 threads tx in {threads} {{",
        *shared,
        f"role r warps 0 + {threads // 32} {{",
        *body,
        "}\n}\n}",
    ]
    return "\n".join(lines)


def _tile(name: str, kind: str, shape: tuple[int, ...], space: str, layout: object) -> str:
    return f'alloc {name}: {kind}{list(shape)} {space} layout="{layout}"'


def swizzled(rows: int, columns: int, kind: str, span: int = 128) -> str:
    """Rows of `span` bytes (0: of 16, not swizzled), those of more columns behind each other."""
    bits = dtype(kind).bits
    width = (span or 16) * 8 // bits
    if not span:
        parts = columns // width
        return f"({rows},({width},{parts})):({width},(1,{rows * width}))"
    unit = (128 // bits).bit_length() - 1
    code = {128: 3, 64: 2, 32: 1}[span]
    if columns <= width:
        return f"S<{code},{unit},3> o 0 o ({rows},{columns}):({width},1)"
    parts = columns // width
    return f"S<{code},{unit},3> o 0 o ({rows},({width},{parts})):({width},(1,{rows * width}))"


_PTX = {
    "bfloat16": "bf16", "float16": "f16", "tfloat32": "tf32", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8", "float32": "f32", "int32": "s32",
    "float64": "f64",
}  # fmt: skip
_WGMMA_SASS = {"int32": "IGMMA", "float8": "QGMMA"}


def wgmma(
    a: str,
    b: str | None = None,
    d: str | None = None,
    n: int = 64,
    source: str = "ss",
    *,
    m: int = 64,
    span: int = 128,
    a_major: str = "k",
    b_major: str = "k",
    declared: str | None = None,
) -> Case:
    """C = A · B by warpgroup instructions, four or more along K. `declared`: the type of tensors
    and tiles where it is not the instruction's (float32 for tf32)."""
    b = b or a
    kind = MATRIX_TYPES[a]
    d = d or kind.accumulators[0]
    k = 4 * kind.k
    held_a, held_b = declared or a, declared or b
    name = f"wgmma_{_PTX[a]}_{_PTX[b]}_{_PTX[d]}_m{m}n{n}_{source}"
    name += f"_{a_major}{b_major}{span}" + ("_declared" if declared else "")
    a_shape = (m, k) if a_major == "k" else (k, m)
    b_shape = (n, k) if b_major == "k" else (k, n)
    bits = kind.bits
    tensors = {"A": (a_shape, held_a), "B": (b_shape, held_b), "C": ((m, n), d)}
    # instructions of 64 rows, side by side along M in registers
    fragments = matrix_fragments("wgmma", kind, n)
    accumulator = repeat(m // 64, 1) * fragments["c"]
    operand = repeat(m // 64, 1) * fragments["a"] if m > 64 else _wide_a(kind.bits, k)
    shared = [
        _tile("a", held_a, a_shape, "shared", swizzled(*a_shape, held_a, span)),
        _tile("b", held_b, b_shape, "shared", swizzled(*b_shape, held_b, span)),
        "alloc full: barrier[1] barrier",
        "barrier_init full count 1",
        "fence barrier_init",
        "sync block",
    ]
    words = ["clear=true", "atom=wgmma"]
    words += ["transpose_a=true"] * (a_major != "k") + ["transpose_b=true"] * (b_major == "k")
    words += ["precision=tf32"] * (declared == "float32")
    left = "a" if source == "ss" else "x"
    body = [
        _tile("acc", d, (m, n), "fragment", accumulator),
        *([_tile("x", held_a, (m, k), "fragment", operand)] if source == "rs" else []),
        f"arrive full[0] bytes={(m + n) * k * bits // 8}",
        "copy A -> a barrier=full[0] atom=bulk_load",
        "copy B -> b barrier=full[0] atom=bulk_load",
        "wait full[0] phase 0",
        *(["copy a -> x atom=ldmatrix"] if source == "rs" else []),
        "fence wgmma",
        f"gemm {left}, b -> acc {' '.join(words)}",
        "commit wgmma",
        "wait_group wgmma pending 0",
        "copy acc -> C atom=threads",
    ]

    def product(x: Arrays) -> np.ndarray:
        left = x["A"] if a_major == "k" else x["A"].T
        return left @ (x["B"].T if b_major == "k" else x["B"])

    form = rf"wgmma\.mma_async\.sync\.aligned\.m64n{n}k{kind.k}\.{_PTX[d]}\.{_PTX[a]}\.{_PTX[b]}"
    sass = _WGMMA_SASS.get(d, _WGMMA_SASS.get(kind.family, "HGMMA"))
    return Case(
        name,
        _program("gemm", tensors, shared, body, 128),
        tensors,
        {"C": product},
        {form: 4 * m // 64},
        sass,
    )


def _wide_a(bits: int, k: int) -> Fragment:
    return wgmma_a_operand(64, k, bits)


def mma(a: str, b: str | None = None, d: str | None = None, *, through: str = "threads") -> Case:
    """C = A · B by four warps, two by two; fragments filled by `through`."""
    b = b or a
    kind = MATRIX_TYPES[a]
    d = d or kind.accumulators[0]
    m, n, k = 64, 32, 2 * kind.k
    atoms = matrix_fragments("mma", kind)
    c_held = spatial(2, 2) * repeat(2, 2) * atoms["c"]
    a_held = spatial(2, 1) * (repeat(2, 2) * atoms["a"]).replicate(2)
    # b is N×K, as memory mostly has it
    part = _transposed(repeat(2, 2) * atoms["b"])
    b_held = (spatial(2, 1) * part).replicate(2)
    tensors = {"A": ((m, k), a), "B": ((n, k), b), "C": ((m, n), d)}
    body = [
        _tile("x", a, (m, k), "fragment", a_held),
        _tile("y", b, (n, k), "fragment", b_held),
        _tile("acc", d, (m, n), "fragment", c_held),
    ]
    shared = []
    ptx = {}
    if through == "threads":
        body += ["copy A -> x atom=threads", "copy B -> y atom=threads"]
    else:
        row = k + 128 // kind.bits  # padded by 16 bytes: no bank conflicts
        plain = spatial(32, 4) * repeat(m // 32, k // 4)
        thin = spatial(32, 4) * repeat(n // 32, k // 4)
        shared = [
            _tile("a", a, (m, k), "shared", f"({m},{k}):({row},1)"),
            _tile("b", b, (n, k), "shared", f"({n},{k}):({row},1)"),
        ]
        body += [
            _tile("p", a, (m, k), "fragment", plain),
            _tile("q", b, (n, k), "fragment", thin),
            "copy A -> p atom=threads",
            "copy B -> q atom=threads",
            "copy p -> a atom=threads",
            "copy q -> b atom=threads",
            "sync block",
            "copy a -> x atom=ldmatrix",
            "copy b -> y atom=ldmatrix",
        ]
        ptx = {r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared": 6}
    body += ["gemm x, y -> acc clear=true transpose_b=true atom=mma", "copy acc -> C atom=threads"]
    form = rf"mma\.sync\.aligned\.m16n8k{kind.k}\.row\.col\.{_PTX[d]}\.{_PTX[a]}\.{_PTX[b]}"
    return Case(
        f"mma_{_PTX[a]}_{_PTX[b]}_{_PTX[d]}_{through}",
        _program("gemm", tensors, shared, body, 128),
        tensors,
        {"C": lambda x: x["A"] @ x["B"].T},
        {form: 2 * 2 * 2, **ptx},
        "IMMA" if d == "int32" else "HMMA",
    )


def _transposed(fragment: Fragment) -> Fragment:
    rows, columns = fragment.tile
    table = fragment.table()
    return Fragment.fit((columns, rows), table % columns * rows + table // columns)


def fma(a: str = "float32", d: str = "float32") -> Case:
    """C = A · B by threads."""
    m, n, k = 32, 32, 24
    held = spatial(16, 8) * repeat(2, 4)
    tensors = {"A": ((m, k), a), "B": ((k, n), a), "C": ((m, n), d)}
    shared = [
        _tile("a", a, (m, k), "shared", f"({m},{k}):({k + 4},1)"),
        _tile("b", a, (k, n), "shared", f"({k},{n}):({n},1)"),
    ]
    body = [
        _tile("p", a, (m, k), "fragment", spatial(32, 4) * repeat(1, 6)),
        _tile("q", a, (k, n), "fragment", spatial(8, 16) * repeat(3, 2)),
        _tile("acc", d, (m, n), "fragment", held),
        "copy A -> p atom=threads",
        "copy B -> q atom=threads",
        "copy p -> a atom=threads",
        "copy q -> b atom=threads",
        "sync block",
        "gemm a, b -> acc clear=true atom=fma",
        "copy acc -> C atom=threads",
    ]
    text = _program("gemm", tensors, shared, body, 128)
    sass = "FFMA" if d == "float32" else "IMAD"
    return Case(f"fma_{a}_{d}", text, tensors, {"C": lambda x: x["A"] @ x["B"]}, {}, sass)


def matrices(
    name: str,
    fragment: Fragment,
    layout: str,
    form: str,
    *,
    held: str = "bfloat16",
    kept: str = "bfloat16",
) -> Case:
    """Y = X through a tile in shared memory written by stmatrix; Z = X through one read by
    ldmatrix (the other side by threads, so that an error is not undone). `form`: x1, x2, x4,
    .trans behind."""
    shape = fragment.tile
    load = held == kept
    tensors = {"X": (shape, held), "Y": (shape, kept), "Z": (shape, kept)}
    if not load:
        del tensors["Z"]
    shared = [_tile("s", kept, shape, "shared", layout), _tile("t", kept, shape, "shared", layout)]
    body = [
        _tile("x", held, shape, "fragment", fragment),
        _tile("y", kept, shape, "fragment", fragment),
        "copy X -> x atom=threads",
        "copy x -> s atom=stmatrix",
        *(["copy x -> t atom=threads"] * load),
        "sync block",
        "copy s -> y atom=threads",
        "copy y -> Y atom=threads",
        *(["copy t -> y atom=ldmatrix", "copy y -> Z atom=threads"] * load),
    ]
    outputs: dict[str, Callable[[Arrays], np.ndarray]] = {"Y": lambda x: x["X"]}
    if load:
        outputs["Z"] = outputs["Y"]
    count, dot, trans = form.partition(".")
    suffix = rf"m8n8\.{count}" + (r"\.trans" if trans else "") + r"\.shared"
    matrices = fragment.values * dtype(kept).bits // 32 // int(count[1:])
    verbs = ("st", "ld") if load else ("st",)
    return Case(
        f"matrices_{name}_{held}_{kept}",
        _program("move", tensors, shared, body, fragment.threads),
        tensors,
        outputs,
        {rf"{v}matrix\.sync\.aligned\.{suffix}": matrices for v in verbs},
        "STSM",
        fragment.threads,
    )


# ── what there is ────────────────────────────────────────────────────────────────────────────


def _accumulator(n: int) -> Fragment:
    return matrix_fragments("wgmma", MATRIX_TYPES["bfloat16"], n)["c"]


_PAIRS = [
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("tfloat32", "tfloat32"),
    ("float8_e4m3fn", "float8_e4m3fn"),
    ("float8_e4m3fn", "float8_e5m2"),
    ("float8_e5m2", "float8_e5m2"),
    ("int8", "int8"),
    ("int8", "uint8"),
    ("uint8", "uint8"),
]
_B_OPERAND = matrix_fragments("mma", MATRIX_TYPES["bfloat16"])["b"]

WGMMA = [
    *(wgmma(a, b, n=n, source=s) for a, b in _PAIRS for s, n in (("ss", 64), ("rs", 24))),
    *(wgmma(a, n=n) for a in ("bfloat16", "tfloat32", "int8") for n in (8, 256)),
    wgmma("float8_e4m3fn", n=256, source="rs"),
    wgmma("float16", d="float16", n=64),
    wgmma("float16", d="float16", n=40, source="rs"),
    wgmma("float8_e4m3fn", d="float16", n=64),
    wgmma("float8_e5m2", "float8_e4m3fn", d="float16", n=24, source="rs"),
    wgmma("tfloat32", declared="float32"),
    wgmma("tfloat32", declared="float32", source="rs"),
    wgmma("float16", a_major="mn", b_major="mn", n=128),
    wgmma("bfloat16", b_major="mn", n=64, source="rs"),
    wgmma("bfloat16", span=64, n=32),
    wgmma("int8", span=32, n=32),
    wgmma("float16", span=0, n=32),
    wgmma("float8_e5m2", span=0, n=48),
    wgmma("float16", span=0, n=48, a_major="mn", b_major="mn"),
    wgmma("bfloat16", span=64, n=96, b_major="mn"),
    wgmma("bfloat16", span=32, n=16, a_major="mn", b_major="mn"),
    wgmma("bfloat16", m=128, n=64),
]
MMA = [
    *(mma(a, b) for a, b in _PAIRS),
    mma("float16", d="float16"),
    mma("float64"),
    *(mma(a, through="ldmatrix") for a in ("bfloat16", "float16", "int8", "tfloat32")),
    fma(),
    fma("int8", "int32"),
]
MATRICES = [
    matrices("acc", _accumulator(64), swizzled(64, 64, "bfloat16"), "x4"),
    matrices("acc_fp16", _accumulator(64), swizzled(64, 64, "float16"), "x4",
             held="float16", kept="float16"),
    matrices("packed", _accumulator(128), swizzled(64, 128, "bfloat16"), "x4", held="float32"),
    matrices("packed_thin", _accumulator(8), "(64,8):(8,1)", "x2", held="float32"),
    matrices("packed_trans", _accumulator(32), "(64,32):(1,72)", "x4.trans",
             held="float32", kept="float16"),
    matrices("thin", _accumulator(24), "(64,24):(24,1)", "x2"),
    matrices("trans", _accumulator(64), "(64,64):(1,72)", "x4.trans"),
    matrices("trans_swizzled", _accumulator(64), "S<3,3,3> o 0 o (64,64):(1,64)", "x4.trans"),
    matrices("one", spatial(8, 4) * repeat(1, 2), "(8,8):(8,1)", "x1"),
    matrices("one_trans", spatial(8, 4) * repeat(1, 2), "(8,8):(1,24)", "x1.trans"),
    matrices("b", repeat(2, 2) * _B_OPERAND, "(32,16):(24,1)", "x4.trans"),
    matrices("b_wide", repeat(4, 1) * _B_OPERAND, "(64,8):(1,72)", "x4"),
    matrices("bytes", matrix_fragments("wgmma", MATRIX_TYPES["int8"])["a"],
             "(64,32):(48,1)", "x4", held="int8", kept="int8"),
    matrices("words", matrix_fragments("wgmma", MATRIX_TYPES["tfloat32"])["a"],
             "(64,8):(12,1)", "x4", held="float32", kept="float32"),
]  # fmt: skip
CASES = {case.name: case for case in (*WGMMA, *MMA, *MATRICES)}
