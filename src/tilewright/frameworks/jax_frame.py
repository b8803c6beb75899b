"""XLA's foreign functions in LLVM IR: the call frame of `xla/ffi/api/c_api.h`, which jaxlib ships.

A handler is one function of one pointer. These are the parts that every handler of ours has: what
XLA asks before it calls (`metadata`), where buffers and attributes lie, and how an error is told.
Offsets are those of 64-bit machines; `tests/frameworks/test_jax_frame.py` compares them with the
header.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

# bytes from the start of each structure
FRAME = {"extension": 8, "api": 16, "context": 24, "stage": 32, "arg_count": 56, "args": 72,
         "result_count": 96, "results": 112, "attribute_count": 136, "attributes": 160}  # fmt: skip
EXTENSION = {"type": 8, "metadata": 24}
METADATA = {"version_size": 8, "version_extension": 16, "major": 24, "minor": 28, "traits": 32,
            "state_type": 40}  # fmt: skip
BUFFER = {"data": 24}
SCALAR = {"value": 8}
API = {"error_create": 48, "error_destroy": 64, "stream": 80, "schedule": 136, "threads": 144,
       "device": 184}  # fmt: skip
EXECUTE = 3
METADATA_EXTENSION = 1
INVALID_ARGUMENT, INTERNAL = 3, 13
VERSION_BYTES = 24
# bytes of the arguments of the API's functions
ERROR_CREATE, ERROR_DESTROY, STREAM, SCHEDULE, THREADS, DEVICE = 28, 24, 32, 40, 32, 28


@cache
def version() -> tuple[int, int]:
    """The interface that the installed XLA has."""
    import jax

    folder = getattr(jax, "ffi", None)
    header = Path(folder.include_dir() if folder else "") / "xla/ffi/api/c_api.h"
    text = header.read_text(encoding="utf-8") if header.is_file() else ""
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    major, minor = (int(match[1]) if match else default
                    for match, default in zip(found, (0, 1), strict=True))  # fmt: skip
    return major, minor


def load(name: str, base: str, offset: int, kind: str = "ptr") -> str:
    return f"""\
  %{name}.at = getelementptr i8, ptr {base}, i64 {offset}
  %{name} = load {kind}, ptr %{name}.at
"""


def text(value: str) -> str:
    """The bytes of a C string in LLVM's form."""
    data = value.encode() + b"\0"
    return f'[{len(data)} x i8] c"' + "".join(
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in data
    ) + '"'  # fmt: skip


def preamble() -> str:
    """Functions that handlers call: `@tw.metadata`, `@tw.fail`, `@tw.drop`."""
    major, minor = version()
    store = "\n".join(
        f"  %m{i} = getelementptr i8, ptr %metadata, i64 {METADATA[field]}\n"
        f"  store {kind} {value}, ptr %m{i}"
        for i, (field, kind, value) in enumerate(
            [("version_size", "i64", VERSION_BYTES), ("version_extension", "ptr", "null"),
             ("major", "i32", major), ("minor", "i32", minor), ("traits", "i32", 0)]
        )
    )  # fmt: skip
    return f"""\
define internal i1 @tw.metadata(ptr %frame) {{
{load("extension", "%frame", FRAME["extension"])}
  %none = icmp eq ptr %extension, null
  br i1 %none, label %no, label %look
look:
{load("type", "%extension", EXTENSION["type"], "i32")}
  %asks = icmp eq i32 %type, {METADATA_EXTENSION}
  br i1 %asks, label %yes, label %no
yes:
{load("metadata", "%extension", EXTENSION["metadata"])}
{store}
  %size = load i64, ptr %metadata
  %newer = icmp ugt i64 %size, {METADATA["state_type"]}
  br i1 %newer, label %stateless, label %told
stateless:
  %state = getelementptr i8, ptr %metadata, i64 {METADATA["state_type"]}
  store i64 0, ptr %state
  br label %told
told:
  ret i1 true
no:
  ret i1 false
}}

define internal ptr @tw.fail(ptr %frame, ptr %message, i32 %code) noinline {{
{load("api", "%frame", FRAME["api"])}
{load("create", "%api", API["error_create"])}
  %given = alloca [4 x i64]
  store [4 x i64] zeroinitializer, ptr %given
  store i64 {ERROR_CREATE}, ptr %given
  %g1 = getelementptr i8, ptr %given, i64 16
  store ptr %message, ptr %g1
  %g2 = getelementptr i8, ptr %given, i64 24
  store i32 %code, ptr %g2
  %error = call ptr %create(ptr %given)
  ret ptr %error
}}

define internal void @tw.drop(ptr %api, ptr %error) noinline {{
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %end, label %free
free:
{load("destroy", "%api", API["error_destroy"])}
  %given = alloca [3 x i64]
  store [3 x i64] zeroinitializer, ptr %given
  store i64 {ERROR_DESTROY}, ptr %given
  %g1 = getelementptr i8, ptr %given, i64 16
  store ptr %error, ptr %g1
  %none = call ptr %destroy(ptr %given)
  br label %end
end:
  ret void
}}
"""


def handler(name: str, counts: tuple[int, int, int], body: str, constants: str) -> str:
    """The module of a handler whose frame has so many arguments, results and attributes. `body`
    ends with `ret ptr …`; in it `%frame`, `%api`, `%context`, `%args`, `%results` and `%attributes`
    are known."""
    wrong = "XLA passes other buffers than this kernel was traced for"
    kinds = ("arg", "result", "attribute")
    found = "".join(load(f"n.{kind}", "%frame", FRAME[f"{kind}_count"], "i64") for kind in kinds)
    tests = "".join(
        f"  %is.{kind} = icmp eq i64 %n.{kind}, {count}\n"
        for kind, count in zip(kinds, counts, strict=True)
    )
    return f"""\
{constants}
@tw.wrong = internal constant {text(f"{name}: {wrong}")}

{preamble()}
define ptr @tw.handler(ptr %frame) {{
  %asked = call i1 @tw.metadata(ptr %frame)
  br i1 %asked, label %nothing, label %called
called:
{load("stage", "%frame", FRAME["stage"], "i32")}
  %now = icmp eq i32 %stage, {EXECUTE}
  br i1 %now, label %check, label %nothing
nothing:
  ret ptr null
check:
{found}{tests}
  %is.two = and i1 %is.arg, %is.result
  %is.all = and i1 %is.two, %is.attribute
  br i1 %is.all, label %go, label %refuse
refuse:
  %refused = call ptr @tw.fail(ptr %frame, ptr @tw.wrong, i32 {INVALID_ARGUMENT})
  ret ptr %refused
go:
{load("api", "%frame", FRAME["api"])}
{load("context", "%frame", FRAME["context"])}
{load("args", "%frame", FRAME["args"])}
{load("results", "%frame", FRAME["results"])}
{load("attributes", "%frame", FRAME["attributes"])}
{body}
}}
"""


def buffer(name: str, of: str, place: int) -> str:
    """`%name`: the address of a buffer's elements, of `%args` or `%results`."""
    return load(f"{name}.buffer", of, 8 * place) + load(name, f"%{name}.buffer", BUFFER["data"])


def attribute(name: str, place: int) -> str:
    """`%name`: the 64 bits of a scalar attribute; attributes are in the order of their names."""
    return load(f"{name}.scalar", "%attributes", 8 * place) + load(
        f"{name}.value", f"%{name}.scalar", SCALAR["value"]
    ) + f"  %{name} = load i64, ptr %{name}.value\n"  # fmt: skip


def aligned(addresses: list[tuple[str, int]]) -> str:
    """Refuse buffers that do not begin on so many bytes: from here on they do."""
    lines, bits = [], "0"
    for i, (address, unit) in enumerate(addresses):
        lines += [
            f"  %low.{i} = ptrtoint ptr {address} to i64",
            f"  %odd.{i} = and i64 %low.{i}, {unit - 1}",
            f"  %some.{i} = or i64 {bits}, %odd.{i}",
        ]
        bits = f"%some.{i}"
    return (
        "\n".join(lines)
        + f"""
  %lies = icmp eq i64 {bits}, 0
  br i1 %lies, label %begin, label %refuse.odd
refuse.odd:
  %odd = call ptr @tw.fail(ptr %frame, ptr @tw.odd, i32 {INVALID_ARGUMENT})
  ret ptr %odd
begin:
"""
    )
