"""What GPUs from sm_80 on execute: a record per instruction with its source template.

The emitter prints an `Intrinsic` by filling the template of its record with the printed operands
(`{0}`, `{1}`, … and `{rest}` for those after the numbered ones) and the fields of its text
(`key=value` words). Instructions that come in many shapes carry `define`, which writes the one
wrapper function a kernel needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir.atoms import MATRIX_TYPES
from tilewright.ir.core import *

Fields = dict[str, str]


@dataclass(frozen=True)
class Instruction:
    """One instruction as C++: `template` of the statement (or of the value, when it yields one),
    and `define`, the wrapper it calls, when that depends on the fields."""

    name: str
    template: str
    define: Callable[[Fields], tuple[str, str]] | None = None


# ── bulk tensor copies ───────────────────────────────────────────────────────────────────────


def _bulk(
    fields: Fields, name: str, operands: list[tuple[str, str, str]], form: str
) -> tuple[str, str]:
    """A wrapper of `operands` (type, name, asm constraint), the coordinates and what `fields` ask
    for besides; `form` has holes for its modifiers and for where the coordinates stand."""
    rank, cache = int(fields["rank"]), fields.get("cache")
    spot = ", ".join(f"%{len(operands) + i}" for i in range(rank))
    operands = [*operands, *(("int", f"c{i}", "r") for i in range(rank))]
    name, modifiers, tail = f"{name}_{rank}d", "", ""
    if "multicast" in fields:
        name, modifiers = f"{name}_multicast", ".multicast::cluster"
        tail += f", %{len(operands)}"
        operands.append(("uint16_t", "mask", "h"))
    params = ", ".join(f"{kind} {word}" for kind, word, _ in operands)
    inputs = [f'"{mark}"({word})' for _, word, mark in operands]
    if cache:
        name, modifiers = f"{name}_{cache}", f"{modifiers}.L2::cache_hint"
        tail += f", %{len(inputs)}"
        inputs.append(f'"l"(uint64_t(tw::{cache}))')
    instruction = form.format(rank=rank, spot=f"{{{spot}}}", modifiers=modifiers)
    return name, (
        f"TW_DEVICE void {name}({params}) {{\n"
        f'  asm volatile("{instruction}{tail};" ::\n'
        f'               {", ".join(inputs)} : "memory");\n'
        "}\n"
    )


_MAP = ("const tw::TensorMap*", "map", "l")


def _bulk_load(fields: Fields) -> tuple[str, str]:
    # an engine that reaches its own block alone takes a detour where the address may be another's
    to = "cta" if fields.get("to") == "block" else "cluster"
    operands = [("uint32_t", "to", "r"), _MAP, ("uint32_t", "barrier", "r")]
    form = (
        f"shared::{to}.global.mbarrier::complete_tx::bytes{{modifiers}} [%0], [%1, {{spot}}], [%2]"
    )
    return _bulk(fields, "bulk_load", operands, f"cp.async.bulk.tensor.{{rank}}d.{form}")


def _bulk_store(fields: Fields) -> tuple[str, str]:
    reduce = fields.get("reduce")
    name = f"bulk_reduce_{reduce}" if reduce else "bulk_store"
    head = "cp.reduce.async.bulk.tensor" if reduce else "cp.async.bulk.tensor"
    kind = f".{reduce}" if reduce else ""
    form = f".global.shared::cta{kind}.tile.bulk_group{{modifiers}} [%0, {{spot}}], [%1]"
    return _bulk(fields, name, [_MAP, ("uint32_t", "from", "r")], f"{head}.{{rank}}d{form}")


# ── matrix instructions ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Accumulator:
    """An accumulator's type in PTX and in C++, the asm constraint of its registers and how many
    elements share one."""

    ptx: str
    cpp: str
    mark: str
    pack: int = 1

    def registers(self, count: int, name: str = "d") -> tuple[str, list[str]]:
        """The line that names registers `name`[] of `count` elements from `name`_, and their asm
        operands."""
        kind = "uint32_t" if self.pack > 1 else self.cpp
        line = f"  {kind}* {name} = reinterpret_cast<{kind}*>({name}_);"
        return line, [f'"+{self.mark}"({name}[{i}])' for i in range(count // self.pack)]


_ACCUMULATORS = {
    "float32": _Accumulator("f32", "float", "f"),
    "float64": _Accumulator("f64", "double", "d"),
    "int32": _Accumulator("s32", "int32_t", "r"),
    "float16": _Accumulator("f16", "tw::float16", "r", 2),
}
_PTX = {
    "bfloat16": "bf16",
    "float16": "f16",
    "tfloat32": "tf32",
    "float64": "f64",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
}


def _wgmma(fields: Fields) -> tuple[str, str]:
    """`n`, the types `a`, `b`, `d`, the majors `ta`, `tb` (1 for MN-major), `from` ss or rs;
    `steps` instructions, of which the first has a choice whether to add."""
    a, b = _PTX[fields["a"]], _PTX[fields["b"]]
    kind = MATRIX_TYPES[fields["a"]]
    n, source, steps = int(fields["n"]), fields["from"], int(fields.get("steps", "1"))
    d = _ACCUMULATORS[fields["d"]]
    majors = fields.get("ta", "0") + fields.get("tb", "0")
    name = f"wgmma_m64n{n}k{kind.k}_{d.ptx}_{a}_{b}_{source}"
    name += f"_{majors}" * ("1" in majors) + f"_x{steps}" * (steps > 1)
    word, regs = d.registers(n // 2)
    words = [word] * (d.pack > 1)
    params = [f"{d.cpp}* {'d_' if d.pack > 1 else 'd'}"]
    scales = "" if fields["d"] == "int32" else ", 1, 1"
    if kind.mn_major:
        scales += f", {majors[1]}" if source == "rs" else f", {majors[0]}, {majors[1]}"
    into = "{" + ", ".join(f"%{i}" for i in range(len(regs))) + "}"
    inputs: list[str] = []
    code: list[str] = []

    def given(*values: str) -> list[str]:
        first = len(regs) + len(inputs)
        inputs.extend(values)
        return [f"%{first + i}" for i in range(len(values))]

    for step in range(steps):
        x = str(step) if steps > 1 else ""
        if source == "ss":
            params.append(f"uint64_t a{x}")
            (left,) = given(f'"l"(a{x})')
        else:
            params.append(f"const void* from{x}")
            words.append(f"  const uint32_t* a{x} = static_cast<const uint32_t*>(from{x});")
            left = "{" + ", ".join(given(*(f'"r"(a{x}[{i}])' for i in range(4)))) + "}"
        params.append(f"uint64_t b{x}")
        (right,) = given(f'"l"(b{x})')
        code.append(f'      " wgmma.mma_async.sync.aligned.m64n{n}k{kind.k}.{d.ptx}.{a}.{b} "')
        code += _wrapped(f"{into}, {left}, {right}, {'q' if step else 'p'}{scales};")
        code.append('      "\\n"')
    code[-1] = '      "\\n}"'
    params.append("int accumulate")
    (adds,) = given('"r"(accumulate)')
    always = '" .reg .pred q;\\n setp.eq.b32 q, 0, 0;\\n"'
    lines = [
        f"TW_DEVICE void {name}({', '.join(params)}) {{",
        *words,
        "  asm volatile(",
        f'      "{{\\n .reg .pred p;\\n setp.ne.b32 p, {adds}, 0;\\n"',
        *([f"      {always}"] * (steps > 1)),
        *code,
        *(("      : " if i == 0 else "        ") + ", ".join(regs[i : i + 8])
          + ("," if i + 8 < len(regs) else "") for i in range(0, len(regs), 8)),
        f"      : {', '.join(inputs)});",
        "}",
    ]  # fmt: skip
    return name, "\n".join(lines) + "\n"


def _mma(fields: Fields) -> tuple[str, str]:
    """A warp's product: the types `a`, `b`, `d`; 16×8, k by the type."""
    a, b = _PTX[fields["a"]], _PTX[fields["b"]]
    kind = MATRIX_TYPES[fields["a"]]
    d = _ACCUMULATORS[fields["d"]]
    shape = f"m16n8k{kind.k}"
    name = f"mma_{shape}_{d.ptx}_{a}_{b}"
    words, regs = d.registers(4)
    count = len(regs)
    holes = ["{" + ", ".join(f"%{first + i}" for i in range(size)) + "}"
             for first, size in ((0, count), (count, 4), (count + 4, 2))]  # fmt: skip
    word, mark = ("double", "d") if kind.bits == 64 else ("uint32_t", "r")
    inputs = [f'"{mark}"({x}[{i}])' for x, size in (("a", 4), ("b", 2)) for i in range(size)]
    lines = [
        f"TW_DEVICE void {name}({d.cpp}* d_, const void* a_, const void* b_) {{",
        words,
        f"  const {word}* a = static_cast<const {word}*>(a_);",
        f"  const {word}* b = static_cast<const {word}*>(b_);",
        f'  asm volatile("mma.sync.aligned.{shape}.row.col.{d.ptx}.{a}.{b}.{d.ptx} "',
        f'               "{", ".join(holes)}, {holes[0]};"',
        f"               : {', '.join(regs)}",
        f"               : {', '.join(inputs)});",
        "}",
    ]
    return name, "\n".join(lines) + "\n"


def _ldmatrix(fields: Fields) -> tuple[str, str]:
    """`count` matrices of 8 rows of 16 bytes; `trans` 1 exchanges rows and columns of 16-bit
    elements on the way."""
    name, form, holes = _matrices("ldmatrix", fields)
    count = len(holes)
    outputs = ", ".join(f'"=r"(to[{i}])' for i in range(count))
    lines = [
        f"TW_DEVICE void {name}(void* registers, uint32_t from) {{",
        "  uint32_t* to = static_cast<uint32_t*>(registers);",
        f'  asm volatile("{form} {{{", ".join(holes)}}}, [%{count}];"',
        f"               : {outputs}",
        '               : "r"(from)',
        '               : "memory");',
        "}",
    ]
    return name, "\n".join(lines) + "\n"


def _stmatrix(fields: Fields) -> tuple[str, str]:
    """As `ldmatrix`, the other way; `from` is words (in consecutive registers) or values."""
    name, form, holes = _matrices("stmatrix", fields, first=1)
    words = [f"w{i}" for i in range(len(holes))]
    params, before = ", ".join(f"uint32_t {w}" for w in words), []
    if fields["from"] == "words":
        name += "_words"
        params = "const void* registers"
        before = ["  const uint32_t* w = static_cast<const uint32_t*>(registers);"]
        words = [f"w[{i}]" for i in range(len(holes))]
    inputs = ", ".join(f'"r"({w})' for w in ("to", *words))
    lines = [
        f"TW_DEVICE void {name}(uint32_t to, {params}) {{",
        *before,
        f'  asm volatile("{form} [%0], {{{", ".join(holes)}}};" ::',
        f'               {inputs} : "memory");',
        "}",
    ]
    return name, "\n".join(lines) + "\n"


def _matrices(verb: str, fields: Fields, first: int = 0) -> tuple[str, str, list[str]]:
    """The wrapper's name, the instruction and its registers' holes."""
    count, trans = int(fields["count"]), fields["trans"] == "1"
    name = f"{verb}_x{count}" + "_trans" * trans
    form = f"{verb}.sync.aligned.m8n8.x{count}{'.trans' * trans}.shared.b16"
    return name, form, [f"%{first + i}" for i in range(count)]


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
        Instruction("bulk_row", "tw::bulk_row<{bytes}{kept}>({0}, {1}, {2}, {3})"),
        Instruction("bulk_store", "{function}(&{map}, {0}, {rest})", _bulk_store),
        Instruction("descriptor", "tw::descriptor<{leading}, {stride}, {swizzle}>({0})"),
        Instruction("wgmma", "{function}({all})", _wgmma),
        Instruction("pin", "tw::pin<{count}>({0})"),
        Instruction("settle", "tw::settle<{count}>({0})"),
        Instruction("mma", "{function}({0}, {1}, {2})", _mma),
        Instruction("stmatrix", "{function}({0}, {rest})", _stmatrix),
        Instruction("ldmatrix", "{function}({0}, {1})", _ldmatrix),
        *(
            Instruction(f"shfl_{kind}", f"{{space}}__shfl_{word}sync({{mask}}, {{all}})")
            for kind, word in (("sync", ""), ("xor", "xor_"), ("up", "up_"), ("down", "down_"))
        ),
        Instruction("ballot", "__ballot_sync({mask}, {0})"),
        Instruction("any_sync", "__any_sync({mask}, {0}) != 0"),
        Instruction("all_sync", "__all_sync({mask}, {0}) != 0"),
        *(
            Instruction(f"warp_reduce_{op}", f"tw::warp_reduce<{{width}}>({{0}}, tw::Fold_{op}())")
            for op in ("sum", "max", "min", "and", "or")
        ),
        Instruction("cp_async", "tw::cp_async<{bytes}{kept}>({0}, {1}, {2})"),
        Instruction("pdl_wait", "tw::pdl_wait()"),
        Instruction("pdl_launch", "tw::pdl_launch()"),
        Instruction("store_packed", "*reinterpret_cast<uint32_t*>({0}) = {1}"),
        Instruction("load_shared", "tw::load_shared<tw::{type}, {count}>({0}, {1})"),
        Instruction("store_shared", "tw::store_shared<tw::{type}, {count}>({0}, {1})"),
        Instruction("fold_pair", "tw::{op}_pair({0}, {1})"),
        Instruction("load_across", "tw::load_across<tw::{type}>({0}, {1})"),
        Instruction("load_global", "tw::load_global<tw::{type}, {count}{kept}>({0}, {1})"),
        Instruction("store_global", "tw::store_global<tw::{type}, {count}{kept}>({0}, {1})"),
        Instruction("store_cluster", "tw::store_cluster<{words}>({0}, {1})"),
        Instruction("store_remote", "tw::store_remote<{words}>({0}, {1}, {2})"),
        Instruction("atomic", "tw::atomic_{op}({all})"),
        Instruction("atomic_of_warp", "tw::from_lane_0([&] {{ return tw::atomic_{op}({all}); }})"),
        Instruction("wait_cluster", "tw::wait_cluster({0}, {1})"),
    )
}


def instruction(name: str) -> Instruction:
    found = INSTRUCTIONS.get(name)
    if found is None:
        raise CompileError(
            f"CUDA has no instruction for intrinsic {name}",
            expected="one of " + ", ".join(INSTRUCTIONS),
        )
    return found


# ── neighbours ───────────────────────────────────────────────────────────────────────────────

# The compiler copies every accumulator into and out of an asm statement. Of the products of a flash
# attention (48 instructions, 64 registers each) these copies took it 400 of 950 ms; as few
# statements the machine code is the same. So many instructions are one:
# of 32, their descriptors no longer fit the uniform registers.
MOST_PRODUCTS = 8


def adjacent(body: Body, index: int) -> list[Intrinsic]:
    """The matrix instructions from `index` on that can be one statement: on one accumulator, which
    the first of them may begin anew. Empty when they are fewer than two."""
    found: list[Intrinsic] = []
    for op in body[index : index + MOST_PRODUCTS]:
        if not (isinstance(op, Intrinsic) and op.name == "wgmma"):
            break
        if found:
            first = found[0]
            if (op.text, op.loc, op.args[0]) != (first.text, first.loc, first.args[0]):
                break
            if op.args[3] is not const(1):
                break
        found.append(op)
    return found if len(found) > 1 else []


def together(ops: list[Intrinsic]) -> Intrinsic:
    """`ops` as one instruction: the accumulator, the other operands in turn, whether to add."""
    into, _, _, adds = ops[0].args
    sides = [arg for op in ops for arg in op.args[1:3]]
    return replace(ops[0], args=(into, *sides, adds), text=f"{ops[0].text} steps={len(ops)}")
