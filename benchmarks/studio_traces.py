"""What each kernel of the studio's gallery takes on a GPU, role by role (`kernel.trace`).

    python benchmarks/studio_traces.py --out benchmarks/results/studio_traces_h200.json

The studio shows it beside the model. A kernel that cannot be traced is kept with its reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.tools.collect import file_names
from tilewright.tools.inputs import arguments
from tilewright.tools.studio.gallery import LESSONS
from tilewright.tools.studio.measured import told
from tilewright.tools.studio.subject import Request, subject_of

LEFT_OUT = ("race", "tutorial 9")  # kernels that are wrong


def given(name: str, kernel: Any) -> Iterator[Any]:
    """Arrays on the GPU, but for those that a call makes."""
    import torch

    made = kernel.launcher.made
    most = {dim.var.name: dim.max for dim in kernel.program.dims}  # sizes known at launch
    for param, value in arguments(kernel.program, most, "floats", 0, {}).items():
        if param in made:
            continue
        if name == "grouped" and param == "offset":  # experts have as many rows each
            rows = kernel.program.params[0].static_shape[0]
            value = np.linspace(0, rows, len(value)).astype(np.int32)
        kind = str(value.dtype)
        if kind in ("bfloat16", "float16"):
            value = torch.from_numpy(value.astype(np.float32)).to(getattr(torch, kind))
            yield value.cuda()
        elif kind == "uint4":  # two of them are a byte
            yield torch.from_numpy(np.ascontiguousarray(value[..., ::2].astype(np.uint8))).cuda()
        elif kind in ("float32", "int32"):
            yield torch.from_numpy(value).cuda()
        else:
            raise TypeError(f"no arrays of {kind} are made here")


def traced(name: str) -> dict[str, Any]:
    lesson = LESSONS[name]
    request: Mapping[str, Any] = lesson.request
    try:
        subject = subject_of(file_names(str(lesson.path)), Request.of(request), lesson.file)
        kernel: Any = subject.compiled
        arrays = list(given(name, kernel))
        kernel.trace(*arrays)  # the first finds no code in the caches
        return {"name": name, **told(kernel.trace(*arrays), request)}
    except Exception as error:
        return {"name": name, "request": {}, "parts": [], "why": f"{type(error).__name__}: {error}"}


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=None)
    options = parser.parse_args()
    names = [n for n in LESSONS if n not in LEFT_OUT]
    traces = [traced(name) for name in options.only or names]
    for one in traces:
        intervals = ", ".join(f"{p['interval']} (modelled {p['modelled']})" for p in one["parts"])
        print(f"{one['name']}: {one.get('why') or intervals or 'no main loop'}")
    about = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "arch": "sm_90a",
        "command": "python benchmarks/studio_traces.py",
        "traces": traces,
    }
    options.out.write_text(json.dumps(about) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
