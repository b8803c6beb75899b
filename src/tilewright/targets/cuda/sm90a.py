"""What sm_90a executes: a record per instruction with its source template.

The emitter prints an `Intrinsic` by filling the template of its record with the printed operands
(`{0}`, `{1}`, … and `{rest}` for those behind the numbered ones) and the fields of its text
(`key=value` words). Instructions that come in many shapes carry `define`, which writes the one
wrapper function a kernel needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.atoms import MATRIX_TYPES
from tilewright.support.errors import CompileError

REGISTERS = 65536
SHARED_BYTES = 232448

Fields = dict[str, str]


@dataclass(frozen=True)
class Instruction:
    """One instruction as C++: `template` of the statement (or of the value, when it yields one),
    and `define`, the wrapper it calls, when that depends on the fields."""

    name: str
    template: str
    define: Callable[[Fields], tuple[str, str]] | None = None


def fields_of(text: str) -> Fields:
    """`key=value` words as a mapping.

    >>> fields_of("map=A_map rank=2")
    {'map': 'A_map', 'rank': '2'}
    """
    return dict(word.split("=", 1) for word in text.split())


# ── bulk tensor copies ───────────────────────────────────────────────────────────────────────


def _bulk_load(fields: Fields) -> tuple[str, str]:
    rank, multicast, cache = int(fields["rank"]), "multicast" in fields, fields.get("cache")
    name = f"bulk_load_{rank}d" + "_multicast" * multicast + (f"_{cache}" if cache else "")
    coords = [f"int c{i}" for i in range(rank)]
    params = ["uint32_t to", "const tw::TensorMap* map", "uint32_t barrier", *coords]
    inputs = ['"r"(to)', '"l"(map)', '"r"(barrier)', *(f'"r"(c{i})' for i in range(rank))]
    spot = ", ".join(f"%{3 + i}" for i in range(rank))
    modifiers, tail = "", ""
    if multicast:
        params.append("uint16_t mask")
        tail += f", %{len(inputs)}"
        inputs.append('"h"(mask)')
        modifiers += ".multicast::cluster"
    if cache:
        tail += f", %{len(inputs)}"
        inputs.append(f'"l"(uint64_t(tw::{cache}))')
        modifiers += ".L2::cache_hint"
    return name, _function(
        name,
        params,
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        f"{modifiers} [%0], [%1, {{{spot}}}], [%2]{tail};",
        inputs,
    )


def _bulk_store(fields: Fields) -> tuple[str, str]:
    rank, cache, reduce = int(fields["rank"]), fields.get("cache"), fields.get("reduce")
    verb = f"reduce_{reduce}" if reduce else "store"
    name = f"bulk_{verb}_{rank}d" + (f"_{cache}" if cache else "")
    params = [
        "const tw::TensorMap* map",
        "uint32_t from",
        *(f"int c{i}" for i in range(rank)),
    ]
    inputs = ['"l"(map)', '"r"(from)', *(f'"r"(c{i})' for i in range(rank))]
    spot = ", ".join(f"%{2 + i}" for i in range(rank))
    modifiers, tail = (f".{reduce}" if reduce else ""), ""
    modifiers += ".tile.bulk_group"
    if cache:
        tail = f", %{len(inputs)}"
        inputs.append(f'"l"(uint64_t(tw::{cache}))')
        modifiers += ".L2::cache_hint"
    head = "cp.reduce.async.bulk.tensor" if reduce else "cp.async.bulk.tensor"
    return name, _function(
        name,
        params,
        f"{head}.{rank}d.global.shared::cta{modifiers} [%0, {{{spot}}}], [%1]{tail};",
        inputs,
    )


def _function(name: str, params: list[str], instruction: str, inputs: list[str]) -> str:
    return (
        f"TW_DEVICE void {name}({', '.join(params)}) {{\n"
        f'  asm volatile("{instruction}" ::\n'
        f'               {", ".join(inputs)} : "memory");\n'
        "}\n"
    )


# ── warpgroup matrix instructions ────────────────────────────────────────────────────────────


_ACCUMULATORS = {"float32": ("f32", "float", "f"), "int32": ("s32", "int32_t", "r")}
_PTX = {
    "bfloat16": "bf16",
    "float16": "f16",
    "tfloat32": "tf32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
}


def _wgmma(fields: Fields) -> tuple[str, str]:
    """`n`, the types `a`, `b`, `d`, the majors `ta`, `tb` (1 for MN-major), `from` ss or rs."""
    a, b = _PTX[fields["a"]], _PTX[fields["b"]]
    kind = MATRIX_TYPES[fields["a"]]
    n, source = int(fields["n"]), fields["from"]
    ptx_d, cpp_d, mark_d = _ACCUMULATORS[fields["d"]]
    majors = fields.get("ta", "0") + fields.get("tb", "0")
    name = f"wgmma_m64n{n}k{kind.k}_{ptx_d}_{a}_{b}_{source}" + (
        f"_{majors}" if "1" in majors else ""
    )
    count = n // 2
    regs = [f'"+{mark_d}"(d[{i}])' for i in range(count)]
    holes = ", ".join(f"%{i}" for i in range(count))
    if source == "ss":
        a_param, a_hole, nxt = "uint64_t a", f"%{count}", count + 1
        inputs = ['"l"(a)']
    else:
        a_param = "const void* from"
        a_hole = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        nxt = count + 4
        inputs = [f'"r"(a[{i}])' for i in range(4)]
    inputs += ['"l"(b)', '"r"(accumulate)']
    scales = ", p" if fields["d"] == "int32" else ", p, 1, 1"
    if kind.mn_major:
        scales += f", {majors[1]}" if source == "rs" else f", {majors[0]}, {majors[1]}"
    lines = [
        f"TW_DEVICE void {name}({cpp_d}* d, {a_param}, uint64_t b, int accumulate) {{",
        *(["  const uint32_t* a = static_cast<const uint32_t*>(from);"] * (source == "rs")),
        '  asm volatile(',
        f'      "{{\\n .reg .pred p;\\n setp.ne.b32 p, %{nxt + 1}, 0;\\n"',
        f'      " wgmma.mma_async.sync.aligned.m64n{n}k{kind.k}.{ptx_d}.{a}.{b} "',
        *_wrapped(f"{{{holes}}}, {a_hole}, %{nxt}{scales};"),
        '      "\\n}"',
        *(("      : " if i == 0 else "        ") + ", ".join(regs[i : i + 8])
          + ("," if i + 8 < count else "") for i in range(0, count, 8)),
        f"      : {', '.join(inputs)});",
        "}",
    ]  # fmt: skip
    return name, "\n".join(lines) + "\n"


def _wrapped(text: str, width: int = 84) -> list[str]:
    """`text` as adjacent string literals of about `width` characters."""
    lines, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) > width:
            lines.append(line)
            line = ""
        line += word + " "
    return [f'      "{part}"' for part in [*lines, line.rstrip()]]


# ── the table ────────────────────────────────────────────────────────────────────────────────

INSTRUCTIONS: dict[str, Instruction] = {
    i.name: i
    for i in (
        Instruction("warp_index", "tw::warp_index({0})"),
        Instruction("elect", "{0} && tw::elect()"),
        Instruction("prefetch_map", "tw::prefetch(&{map})"),
        Instruction("bulk_load", "{function}({0}, &{map}, {1}, {rest})", _bulk_load),
        Instruction("bulk_store", "{function}(&{map}, {0}, {rest})", _bulk_store),
        Instruction("descriptor", "tw::descriptor<{leading}, {stride}, {swizzle}>({0})"),
        Instruction("wgmma", "{function}({0}, {1}, {rest})", _wgmma),
        Instruction("pin", "tw::pin<{count}>({0})"),
        Instruction("settle", "tw::settle<{count}>({0})"),
        Instruction("stmatrix", "tw::stmatrix({0}, {rest})"),
        Instruction("ldmatrix", "tw::ldmatrix({0}, {1})"),
        Instruction("shfl_xor", "__shfl_xor_sync(~0u, {0}, {1})"),
        Instruction("store_packed", "*reinterpret_cast<uint32_t*>({0}) = {1}"),
        Instruction("load_shared", "tw::load_shared<tw::{type}, {count}>({0}, {1})"),
        Instruction("store_shared", "tw::store_shared<tw::{type}, {count}>({0}, {1})"),
        Instruction("load_global", "tw::load_global<tw::{type}, {count}>({0}, {1})"),
        Instruction("store_global", "tw::store_global<tw::{type}, {count}>({0}, {1})"),
        Instruction("store_remote", "tw::store_remote<{words}>({0}, {1}, {2})"),
        Instruction("wait_cluster", "tw::wait_cluster({0}, {1})"),
    )
}


def instruction(name: str) -> Instruction:
    found = INSTRUCTIONS.get(name)
    if found is None:
        raise CompileError(
            f"sm_90a has no instruction for intrinsic {name}",
            expected="one of " + ", ".join(INSTRUCTIONS),
        )
    return found
