"""`asm` statements as calls: each PTX instruction is a function of its operands (`ptx.h`).

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    do { ptx::cvt_rn_f16x2_f32((r), (b), (a)); } while (0);

An instruction that has no function there is one that nobody gave a meaning: who comes to it ends
the run, and its name is what is reported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent

# instructions that mean nothing where threads take turns: fences, hints, and register counts
_NOTHING = re.compile(
    r"fence\.|prefetch\.|griddepcontrol\.|setmaxnreg\.|wgmma\.fence|pmevent$|createpolicy"
)
_HINTS = re.compile(r"\.L2::cache_hint|\.L1::no_allocate|(?<=^ld\.global)\.nc")
_LOAD = r"cp\.async\.bulk\.tensor\.(\d)d\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
_STORE = r"async\.bulk\.tensor\.\dd\.global\.shared::cta"
_MATRICES = r"matrix\.sync\.aligned\.m8n8\.x\d"
# instructions of many shapes: what to call, behind | a first argument
_FAMILIES = {
    r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.(\w+)\.(\w+)\.(\w+)\.\w+":
        r"mma<\1, ptx::\2, ptx::\3, ptx::\4>",
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(\w+)\.(\w+)\.(\w+)":
        r"wgmma<\1, \2, ptx::\3, ptx::\4, ptx::\5>",
    _LOAD: r"bulk_load<\1, false>",
    rf"{_LOAD}\.multicast::cluster": r"bulk_load<\1, true>",
    rf"cp\.{_STORE}\.tile\.bulk_group": "bulk_store|nullptr",
    rf"cp\.reduce\.{_STORE}\.(\w+)\.tile\.bulk_group": r'bulk_store|"\1"',
    rf"(ld|st){_MATRICES}\.shared\.b16": r"\1matrix<false>",
    rf"(ld|st){_MATRICES}\.trans\.shared\.b16": r"\1matrix<true>",
}  # fmt: skip
_GROUPS = ("wgmma", "bulk_load", "bulk_store")  # take what stands in braces as a list
_START = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")


@cache
def known() -> frozenset[str]:
    """The functions of `ptx.h`."""
    text = (HERE / "ptx.h").read_text()
    return frozenset(re.findall(r"^(?:inline )?(?:void|uint32_t) (\w+)\(", text, re.M))


def translated(text: str) -> str:
    """`text`, preprocessed C++, with calls for its `asm` statements. Lines stay where they are."""
    parts, at = [], 0
    for found in _START.finditer(text):
        if found.start() < at:
            continue
        end, sections = _sections(text, found.end())
        parts += [text[at : found.start()], _statement(sections)]
        parts.append("\n" * text.count("\n", found.start(), end))
        at = end
    return "".join([*parts, text[at:]])


def _sections(text: str, at: int) -> tuple[int, list[str]]:
    """What lies between the colons of a statement whose parenthesis opened before `at`, and where
    it closes."""
    found, depth = [""], 0
    while True:
        piece = re.compile(r'"(?:\\.|[^"\\])*"|.', re.S).match(text, at)
        assert piece is not None, "asm without an end"
        at = piece.end()
        char = piece[0]
        if char == ")" and depth == 0:
            return at, found
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(char, 0)
        if char == ":" and depth == 0:
            found.append("")
        else:
            found[-1] += char


def _literals(text: str) -> str:
    """Adjacent string literals as the text that they are."""
    return "".join(ast.literal_eval(x) for x in re.findall(r'"(?:\\.|[^"\\])*"', text))


def _split(text: str) -> Iterator[str]:
    """Parts between commas outside of all parentheses and strings."""
    depth, part = 0, ""
    for piece in re.findall(r'"(?:\\.|[^"\\])*"|.', text, re.S):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(piece, 0)
        if piece == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += piece
    if part.strip():
        yield part.strip()


def _statement(sections: list[str]) -> str:
    operands = [
        re.sub(r'^"[^"]*"\s*', "", operand)
        for section in sections[1:3]
        for operand in _split(section)
    ]
    code = _literals(sections[0]).strip()
    code = re.sub(r"^\{(.*)\}$", r"\1", code, flags=re.S)
    out = []
    for line in (part.strip() for part in code.split(";")):
        if declared := re.fullmatch(r"\.reg \.pred (\w+)", line):
            out.append(f"bool {declared[1]};")
        elif line:
            out.append(_instruction(line, operands))
    return f"do {{ {' '.join(out)} }} while (0)"


def _instruction(line: str, operands: list[str]) -> str:
    guard = ""
    if guarded := re.match(r"@(\w+)\s+", line):
        guard, line = f"if ({guarded[1]}) ", line[guarded.end() :]
    opcode, _, rest = line.partition(" ")
    if _NOTHING.match(opcode):
        return f"{guard}ptx::nothing();"
    opcode = _HINTS.sub("", opcode)
    name = next((re.sub(p, c, opcode) for p, c in _FAMILIES.items() if re.fullmatch(p, opcode)), "")
    groups = name.startswith(_GROUPS)
    args = [a for part in _split(rest) for a in _operand(part, operands, groups)]
    if "ldmatrix" in name:  # where it reads comes first
        args = [args[-1], *args[:-1]]
    if "|" in name:
        name, _, first = name.partition("|")
        args.insert(0, first)
    if not name:
        name = re.sub(r"\W+", "_", opcode)
        if name not in known():
            return f'{guard}host::excluded("{opcode}");'
    return f"{guard}ptx::{name}({', '.join(args)});"


def _operand(text: str, operands: list[str], groups: bool) -> Iterator[str]:
    """An operand's arguments: places are bare, groups are flat or a list of what they hold."""
    text = text.strip().removeprefix("_|")
    if text == "_":
        return
    if text.startswith("["):
        for part in _split(text[1:-1]):
            yield from _operand(part, operands, groups)
    elif text.startswith("{"):
        inner = [a for part in _split(text[1:-1]) for a in _operand(part, operands, False)]
        if not groups:
            yield from inner
        elif len(inner) > 1 and _are_registers(text, operands):
            yield "{" + ", ".join(f"&{a}" for a in inner) + "}"
        else:
            yield "{" + ", ".join(f"int({a})" for a in inner) + "}"
    elif special := re.fullmatch(r"%%([\w.]+)", text):
        name = special[1].replace(".", "_")
        yield f"ptx::{name}()" if name in known() else f'(host::excluded("{special[1]}"), 0)'
    else:
        yield re.sub(r"%(\d+)", lambda m: f"{operands[int(m[1])]}", text)


def _are_registers(text: str, operands: list[str]) -> bool:
    """Whether a group names elements of arrays, not coordinates."""
    first = re.match(r"\{\s*%(\d+)", text)
    return first is not None and "[" in operands[int(first[1])]
