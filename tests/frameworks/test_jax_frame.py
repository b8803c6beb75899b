"""Where XLA's structures have their fields, by the header that jaxlib ships."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.export.library import COMPILER, needs_compiler
from tilewright.frameworks import jax_frame as frame

jax = pytest.importorskip("jax")

FIELDS = {
    "XLA_FFI_CallFrame": (frame.FRAME, {
        "extension": "extension_start", "api": "api", "context": "ctx", "stage": "stage",
        "arg_count": "args.size", "args": "args.args", "result_count": "rets.size",
        "results": "rets.rets", "attribute_count": "attrs.size", "attributes": "attrs.attrs"}),
    "XLA_FFI_Metadata_Extension": (frame.EXTENSION, {
        "type": "extension_base.type", "metadata": "metadata"}),
    "XLA_FFI_Metadata": (frame.METADATA, {
        "version_size": "api_version.struct_size",
        "version_extension": "api_version.extension_start",
        "major": "api_version.major_version", "minor": "api_version.minor_version",
        "traits": "traits", "state_type": "state_type_id"}),
    "XLA_FFI_Buffer": (frame.BUFFER, {"data": "data"}),
    "XLA_FFI_Scalar": (frame.SCALAR, {"value": "value"}),
    "XLA_FFI_Api": (frame.API, {
        "error_create": "XLA_FFI_Error_Create", "error_destroy": "XLA_FFI_Error_Destroy",
        "stream": "XLA_FFI_Stream_Get", "schedule": "XLA_FFI_ThreadPool_Schedule",
        "threads": "XLA_FFI_ThreadPool_NumThreads", "device": "XLA_FFI_DeviceOrdinal_Get"}),
}  # fmt: skip
SIZES = {
    "XLA_FFI_Api_Version": frame.VERSION_BYTES,
    "XLA_FFI_Error_Create_Args": frame.ERROR_CREATE,
    "XLA_FFI_Error_Destroy_Args": frame.ERROR_DESTROY,
    "XLA_FFI_Stream_Get_Args": frame.STREAM,
    "XLA_FFI_ThreadPool_Schedule_Args": frame.SCHEDULE,
    "XLA_FFI_ThreadPool_NumThreads_Args": frame.THREADS,
    "XLA_FFI_DeviceOrdinal_Get_Args": frame.DEVICE,
}


@needs_compiler
def test_fields_are_where_the_header_has_them(tmp_path):
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    lines = ['#include "xla/ffi/api/c_api.h"']
    for name, (offsets, fields) in FIELDS.items():
        assert offsets.keys() == fields.keys()
        lines += [f'static_assert(offsetof({name}, {field}) == {offsets[ours]}, "{name}");'
                  for ours, field in fields.items()
                  if ours != "state_type" or field in header]  # fmt: skip
    lines += [f'static_assert({name}_STRUCT_SIZE == {size}, "{name}");'
              for name, size in SIZES.items()]  # fmt: skip
    lines.append(f"static_assert(XLA_FFI_ExecutionStage_EXECUTE == {frame.EXECUTE});")
    lines.append(f"static_assert(XLA_FFI_API_MAJOR == {frame.version()[0]});")
    lines.append(f"static_assert(XLA_FFI_API_MINOR == {frame.version()[1]});")
    file = tmp_path / "fields.cpp"
    file.write_text("\n".join(lines))
    command = [COMPILER, "-std=c++17", "-fsyntax-only", "-I", jax.ffi.include_dir(), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
