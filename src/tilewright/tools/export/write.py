"""An export: what it consists of, and its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import tilewright.targets.cuda.kernel as cuda
from tilewright.ir.chips import PTX
from tilewright.ir.core import *
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support import env
from tilewright.targets.entries import Json
from tilewright.tools.export.collect import Named
from tilewright.tools.export.tables import (
    Contract,
    Launches,
    Table,
    c_type,
    declared,
    quoted,
    scratch_table,
)

MANIFEST = "manifest.json"
_RESERVED = frozenset(
    "alignas alignof and asm auto bool break case catch char class compl const continue default "
    "delete do double else enum explicit export extern false final float for friend goto if inline "
    "int long mutable namespace new noexcept not operator or override private protected public "
    "register requires return short signed sizeof static stream struct switch template this throw "
    "true try typedef typeid typename union unsigned using virtual void volatile while xor".split()
)


def c_name(text: str, taken: Mapping[str, Any] = {}) -> str:
    """An identifier of C for `text`, none of `taken`.

    >>> c_name("main"), c_name("größe 2"), c_name("new"), c_name("a", {"a": 1})
    ('main', 'gr__e_2', 'new_', 'a_2')
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"
    if name[0].isdigit() or name in _RESERVED:
        name = f"_{name}" if name[0].isdigit() else f"{name}_"
    tries = 2
    while name in taken:
        name = f"{name.rstrip('_')}_{tries}" if tries == 2 else f"{name.rsplit('_', 1)[0]}_{tries}"
        tries += 1
    return name


@dataclass
class Function:
    """One function of the header: a kernel of one program, compiled for each target."""

    name: str
    builds: tuple[CompiledKernel, ...]
    contract: Contract
    export: str = ""

    @property
    def program(self) -> Program:
        return self.contract.program

    def parameters(self) -> dict[str, tuple[str, Buffer | Var]]:
        """By name in C: the declaration and the parameter."""
        found: dict[str, tuple[str, Buffer | Var]] = {}
        for p in self.program.params:
            name = c_name(p.name, found)
            kind = "const tw_tensor *" if isinstance(p, Buffer) else f"{c_type(p.dtype)} "
            found[name] = f"{kind}{name}", p
        return found

    def signature(self) -> str:
        words = [text for text, _ in self.parameters().values()]
        return f"tw_status {self.export}_{self.name}({', '.join([*words, 'tw_stream stream'])})"

    def comment(self) -> str:
        lines = []
        for name, (_, p) in self.parameters().items():
            if isinstance(p, Var):
                bits = (
                    " (its bits)" if c_type(p.dtype).startswith("uint") and p.dtype.is_float else ""
                )
                lines.append(f"{name}: {p.dtype}{bits}")
                continue
            notes = [", written"] * (p.name in self.contract.written)
            notes += [", may be null"] * (p.name in self.contract.unused)
            lines.append(f"{name}: {declared(p)}{''.join(notes)}")
        for d in self.program.dims:
            most = "" if d.max is None else f", at most {d.max}"
            multiple = "" if d.multiple_of == 1 else f", a multiple of {d.multiple_of}"
            lines.append(f"{d.var.name}: at least {d.min}{most}{multiple}")
        return "\n".join(f"// {line}" for line in lines)


def functions(found: Sequence[Named], export: str) -> list[Function]:
    """What is exported, each under a name of its own: with the sizes where one is not enough."""
    named: dict[str, Function] = {}
    taken: dict[str, Any] = {"message": None}
    often = [each.name for each in found]
    for each in found:
        text = each.name
        if often.count(text) > 1:
            sizes = [f"{n}{v}" for n, v in each.sizes.items() if isinstance(v, (int, str))]
            text = "_".join([text, *sizes])
        name = c_name(text, taken | named)
        programs = [b.program for b in each.builds]
        first = programs[0]
        for build, program in zip(each.builds, programs, strict=True):
            if (program.params, program.dims) != (first.params, first.dims):
                raise CompileError(
                    f"{each.name} has other parameters for {build.target}",
                    expected=f"those for {each.builds[0].target}",
                    fix="export each architecture by itself",
                    code="export",
                )
        named[name] = Function(name, each.builds, Contract(name, first), c_name(export))
    return list(named.values())


@dataclass
class Files:
    """An export's files by name, and what the manifest says of each function."""

    name: str
    kind: str
    content: dict[str, bytes] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return f"tilewright_{self.name}"

    def text(self, name: str, text: str) -> None:
        self.content[name] = text.encode()

    def shipped(self, *names: str) -> None:
        folder = resources.files("tilewright.tools.export")
        for name in names:
            self.content[name] = (folder / name).read_bytes()

    def sums(self, names: Sequence[str]) -> Json:
        return {n: hashlib.sha256(self.content[n]).hexdigest() for n in names}


def export(name: str, made: Sequence[Function], folder: Path, version: str) -> list[str]:
    """Write an export to `folder`; the names of its files."""
    target = made[0].builds[0].target
    kind = target.kind
    if kind not in ("cpu", "cuda") or target.diagnostic or env.DIAGNOSTIC.on():
        raise CompileError(
            f"there is no machine code to export for {target}",
            expected="ordinary builds for 'cpu' or 'cuda'",
            fix="unset TILEWRIGHT_SANITIZE and TILEWRIGHT_DIAGNOSTIC",
            code="export",
        )
    files = Files(c_name(name), kind)
    files.text(f"{files.name}.h", header(files.name, made))
    files.shipped("tilewright.h", "contract.h", f"launch_{kind}.h")
    told, source, links = (cuda_source if kind == "cuda" else cpu_source)(files, made)
    files.text(f"{files.name}.cpp", source)
    files.text("CMakeLists.txt", cmake(files, links))
    files.text(f"{files.name}Config.cmake", _CONFIG.format(name=files.name))
    manifest = {
        "format": 1,
        "tilewright": version,
        "name": files.name,
        "target": kind,
        "functions": told,
        "sha256": files.sums(sorted(files.content)),
    }
    files.text(MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    _replace(folder, files.content)
    return sorted(files.content)


def _replace(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write the files; those of an export that stood there before go."""
    before = folder / MANIFEST
    if before.is_file():
        for name in json.loads(before.read_text(encoding="utf-8")).get("sha256", {}):
            if name not in content and ".." not in name and not name.startswith("/"):
                (folder / name).unlink(missing_ok=True)
    elif folder.is_dir() and any(folder.iterdir()):
        raise CompileError(
            f"{folder} is neither empty nor an export",
            expected="a new folder, or one that an export wrote",
            fix="name another folder with -o",
            code="export",
        )
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# ── text ─────────────────────────────────────────────────────────────────────────────────────


def header(name: str, made: Sequence[Function]) -> str:
    guard = f"TILEWRIGHT_{name.upper()}_H"
    parts = [f"{f.comment()}\n{f.signature()};" for f in made]
    return (
        f"// Written by `tilewright export`.\n#ifndef {guard}\n#define {guard}\n\n"
        '#include <stdbool.h>\n\n#include "tilewright.h"\n\n#ifdef __cplusplus\nextern "C" {\n'
        "#endif\n\n// Why the last call of this thread that did not return TW_OK failed.\n"
        f"const char *{name}_message(void);\n\n"
        + "\n\n".join(parts)
        + "\n\n#ifdef __cplusplus\n}\n#endif\n#endif\n"
    )


def definition(f: Function) -> str:
    """The function of the header: its arguments in two arrays."""
    words = f.parameters()
    tensors = [name for name, (_, p) in words.items() if isinstance(p, Buffer)]
    scalars = [f"tw::word({n})" for n, (_, p) in words.items() if isinstance(p, Var)]
    lines = [
        f"const tw_tensor *tensors[] = {{{', '.join(tensors)}}};" if tensors
        else "const tw_tensor *const *tensors = nullptr;",
        f"const tw::Word scalars[] = {{{', '.join(scalars)}}};" if scalars
        else "const tw::Word *scalars = nullptr;",
        f"return tw::call(tw::{f.name}_kernel, tensors, scalars, stream);",
    ]  # fmt: skip
    return f"{f.signature()} {{\n  " + "\n  ".join(lines) + "\n}"


def source(
    files: Files, made: Sequence[Function], outside: Sequence[str], tables: Sequence[str]
) -> str:
    parts = [
        "// Written by `tilewright export`.",
        f'#include "{files.name}.h"\n\n#define TILEWRIGHT_EXPORT {files.namespace}\n'
        f'#include "launch_{files.kind}.h"\n\nnamespace tw = {files.namespace};',
        "#define TW_NUMBER(x) [](const int64_t *v) -> int64_t { (void)v; return x; }",
        *outside,
        f"namespace {files.namespace} {{\nnamespace {{",
        *tables,
        f"}}  // namespace\n}}  // namespace {files.namespace}",
        'extern "C" {',
        f"const char *{files.name}_message(void) {{ return tw::message(); }}",
        *map(definition, made),
        '}  // extern "C"',
    ]
    return "\n\n".join(parts) + "\n"


def cmake(files: Files, links: Sequence[str]) -> str:
    name = files.name
    sources = [f for f in sorted(files.content) if f.endswith((".cpp", ".o"))]
    listed = " ".join(f'"${{CMAKE_CURRENT_LIST_DIR}}/{f}"' for f in sources)
    objects = "".join(
        f'set_source_files_properties("${{CMAKE_CURRENT_LIST_DIR}}/{f}" PROPERTIES '
        "EXTERNAL_OBJECT TRUE)\n"
        for f in sources
        if f.endswith(".o")
    )
    package = {"cuda": "CUDAToolkit", "cpu": "Threads"}[files.kind]
    return (
        "# Written by `tilewright export`: add_subdirectory this folder, or\n"
        f"# find_package({name} CONFIG PATHS this folder); link tilewright::{name}.\n"
        f"cmake_minimum_required(VERSION 3.18)\nproject({name} CXX)\n"
        f"find_package({package} REQUIRED)\n{objects}"
        f"add_library({name} {listed})\nadd_library(tilewright::{name} ALIAS {name})\n"
        f"target_compile_features({name} PUBLIC cxx_std_17)\n"
        f"set_target_properties({name} PROPERTIES POSITION_INDEPENDENT_CODE ON)\n"
        f'target_include_directories({name} PUBLIC "${{CMAKE_CURRENT_LIST_DIR}}")\n'
        f"target_link_libraries({name} PRIVATE {' '.join(links)})\n"
    )


_CONFIG = """\
if(NOT TARGET tilewright::{name})
  add_subdirectory("${{CMAKE_CURRENT_LIST_DIR}}" "${{CMAKE_BINARY_DIR}}/tilewright_{name}")
endif()
"""


# ── CUDA ─────────────────────────────────────────────────────────────────────────────────────


def cuda_source(files: Files, made: Sequence[Function]) -> tuple[Json, str, list[str]]:
    told, tables, images = [], [], Table("image")
    for f in made:
        to = Table(f.name)
        variants, said = [], []
        for build in f.builds:
            code = build.executable
            if not isinstance(code, cuda.CudaKernel):
                raise cuda_missing(code)
            text, forms = _variant(files, f, to, images, code)
            variants.append(text)
            said.append({"arch": build.target.arch, "forms": forms})
        rows = to.array("Variant", "variants", variants)
        contract = f.contract.table(to)
        tables += [*to.lines, f"const Kernel {f.name}_kernel = {{{contract}, {rows}, "
                   f"{len(variants)}}};"]  # fmt: skip
        told.append({"name": f.name, "program": f.program.name, **f.contract.manifest(),
                     "architectures": said})  # fmt: skip
    files.text(
        f"{files.name}_images.cpp",
        "// Written by `tilewright export`: the machine code of the files beside it.\n"
        "#include <cstdint>\n\n" + _inside(files, [f"extern {line}" for line in images.lines]),
    )
    outside = [f"extern {line.partition('[]')[0]}[];" for line in images.lines]
    text = source(files, made, [_inside(files, outside)], tables)
    return told, text, ["CUDA::cuda_driver"]


def _inside(files: Files, lines: Sequence[str]) -> str:
    inner = "\n".join(lines)
    return f"namespace {files.namespace} {{\n{inner}\n}}  // namespace {files.namespace}\n"


def cuda_missing(code: Any) -> Exception:
    missing = getattr(code, "missing", None)
    return missing if isinstance(missing, Exception) else CompileError("no machine code")


def _variant(
    files: Files, f: Function, to: Table, images: Table, code: cuda.CudaKernel
) -> tuple[str, Json]:
    """One architecture: the initializer of its `Variant`, and its forms for the manifest."""
    arch, general = code.target.arch, code.otherwise or code
    tensors, dims = f.program.tensors, f.program.dims
    builds: list[tuple[cuda.CudaKernel, Mapping[str, int], Mapping[str, int]]]
    builds = [(code, *code.takes())] if code.otherwise else []
    builds.append((general, {}, {}))
    rows, said = [], []
    for i, (build, multiples, align) in enumerate(builds):
        scratch = build.record.scratch
        image = bytes(build.compiled.image)
        file = f"{f.name}.{arch}.{i}.{'ptx' if arch.startswith(PTX) else 'cubin'}"
        files.content[file] = image
        launches = Launches(f.contract, build.specs, scratch)
        steps = [str(multiples.get(d.var.name, 1)) for d in dims]
        begins = [str(align.get(t.name, 1)) for t in tensors]
        rows.append(
            f"{{{_embedded(images, file, image)}, {launches.table(to)}, {len(build.specs)}, "
            f"{scratch_table(f.contract, to, scratch)}, {len(scratch)}, "
            f"{to.array('int64_t', 'multiples', steps)}, {to.array('int', 'align', begins)}}}"
        )
        said.append(
            {
                "file": file,
                "sha256": hashlib.sha256(image).hexdigest(),
                "when": {"multiples": {n: m for n, m in multiples.items() if m > 1},
                         "align": dict(align)},
                "launches": launches.manifest(),
                "scratch": [{"name": b.name, "dtype": b.dtype.name, "shape": [*map(str, b.shape)]}
                            for b in scratch],
            }
        )  # fmt: skip
    digits = int(re.sub(r"\D", "", arch))
    runs = "ON_LATER_CHIPS" if arch.startswith(PTX) else "ON_THIS_FAMILY"
    runs = "ON_THIS_CHIP" if arch.endswith("a") else runs
    least = general.record.align
    own = to.array("int", "least", (str(least.get(t.name, 0)) for t in tensors))
    forms = to.array("Form", "forms", rows)
    text = f"{{{quoted(arch)}, {digits // 10}, {digits % 10}, {runs}, {own}, {forms}, {len(rows)}}}"
    return text, said


def _embedded(images: Table, file: str, data: bytes) -> str:
    """Machine code as an array of words: what any compiler reads."""
    padded = data + bytes(-len(data) % 8 + 8)
    words = (padded[i : i + 8] for i in range(0, len(padded), 8))
    hexed = [f"0x{int.from_bytes(word, 'little'):x}" for word in words]
    rows = [",".join(hexed[i : i + 8]) for i in range(0, len(hexed), 8)]
    return images.array("uint64_t", re.sub(r"\W", "_", file), rows)


# ── the CPU ──────────────────────────────────────────────────────────────────────────────────


def cpu_source(files: Files, made: Sequence[Function]) -> tuple[Json, str, list[str]]:
    from tilewright.targets.cpu.host import level
    from tilewright.tools.export.objects import object_for

    processor, needed = level()
    told, tables = [], []
    asked = " && ".join(f'__builtin_cpu_supports("{feature}")' for feature in needed) or "true"
    tables.append(f"bool fits() {{ return {asked}; }}")
    outside = []
    for f in made:
        code = f.builds[0].executable.code  # type: ignore[attr-defined]
        if code.watches or any(t.dtype.packed for t in f.program.tensors):
            raise CompileError(
                f"{f.program.name} cannot be exported for the CPU",
                expected="no T.print, no T.device_assert, elements of whole bytes",
                got="a kernel that prints or asserts" if code.watches else "elements of some bits",
                fix="leave them out, or export it for CUDA",
                code="export",
            )
        to = Table(f.name)
        prefix = f"tw_{files.name}_{f.name}"
        data, entries = object_for(code, prefix, processor)
        file = f"{f.name}.o"
        files.content[file] = data
        for entry, count, _ in entries:
            outside.append(f"void {entry}(const void *, void *, int64_t, int64_t);")
            outside.append(f"int64_t {count}(const void *);")
        params, scalars = f.program.params, [s.name for s in f.program.scalars]
        order = (
            str(f.contract.tensor(p.name) if isinstance(p, Buffer) else -1 - scalars.index(p.name))
            for p in params
        )
        parts = [
            f.contract.table(to), quoted(processor), "fits",
            to.array("int", "align", ("0" for _ in f.program.tensors)),
            to.array("int", "order", order), len(params),
            to.array("Launch", "launches", (f"{{{e}, {c}, {size}}}" for e, c, size in entries)),
            len(entries), scratch_table(f.contract, to, code.scratch), len(code.scratch),
        ]  # fmt: skip
        tables += [*to.lines, f"const Kernel {f.name}_kernel = {{{', '.join(map(str, parts))}}};"]
        told.append({"name": f.name, "program": f.program.name, **f.contract.manifest(),
                     "processor": processor, "file": file})  # fmt: skip
    symbols = 'extern "C" {\n' + "\n".join(outside) + "\n}"
    text = source(files, made, [symbols], tables)
    return told, text, ["Threads::Threads", "m"]
