"""What a figure was measured on: GPU, driver, clocks, versions. Nothing that names the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

# nvidia-smi's name of a figure → ours
_CLOCKS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "clocks.max.sm": "sm_max_mhz",
    "power.limit": "power_limit_w",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}
PACKAGES = (
    "numpy", "torch", "triton", "cuda-bindings", "nvidia-cuda-nvrtc", "cupy-cuda13x",
    "cupy-cuda12x", "jax", "tilelang", "quack-kernels", "nvidia-cudnn-cu13", "nvidia-cublas",
    "llvmlite",
)  # fmt: skip


def _smi(names: list[str]) -> list[str] | None:
    """What nvidia-smi says of the first visible GPU; None where there is no nvidia-smi."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, "-i", gpu], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = [w.strip() for w in done.stdout.strip().split("\n")[0].split(",")]
    return words if len(words) == len(names) else None


def clocks() -> dict[str, float] | None:
    """Clocks, power and temperature as they are now; None where nobody can tell."""
    words = _smi(list(_CLOCKS))
    if words is None:
        return None
    found = {}
    for name, word in zip(_CLOCKS.values(), words, strict=True):
        try:
            found[name] = float(word)
        except ValueError:  # "[N/A]"
            continue
    return found


def versions() -> dict[str, str]:
    """The packages that a figure may depend on, those that are here."""
    found = {"python": platform.python_version()}
    package = sys.modules.get("tilewright")
    found["tilewright"] = str(getattr(package, "__version__", ""))
    if commit := _commit():
        found["commit"] = commit
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit of the source tree this runs from, with a + where files differ from it."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        asked = ([*git, "rev-parse", "HEAD"], [*git, "status", "--porcelain", "-uno"])
        head, changed = (
            subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+" if changed.strip() else "")


_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def _driver() -> str | None:
    """The driver's version where nvidia-smi is missing, from the kernel module's own words."""
    try:
        words = _KERNEL_MODULE.read_text().split()
    except OSError:
        return None
    return next((w for w in words if re.fullmatch(r"\d+\.\d+(\.\d+)?", w)), None)


def machine() -> dict[str, Any]:
    """The GPU and its driver (None without one), the processor, the versions."""
    words = _smi(["name", "driver_version"])
    return {
        "gpu": words[0] if words else None,
        "driver": words[1] if words else _driver(),
        "cuda": None,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": versions(),
    }


def process_facts() -> dict[str, Any]:
    """What only a process that uses the GPU can say; empty in one that does not."""
    from tilewright.runtime.timing import gpu_in_use

    if not gpu_in_use():
        return {}
    from tilewright.targets.cuda.driver import driver

    found = driver()
    device = found.device(found.current_ordinal())
    version = found.driver_version
    facts: dict[str, Any] = {
        "gpu": device.name.partition("\0")[0].strip(),
        "sms": device.sms,
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
    }
    if torch := sys.modules.get("torch"):
        facts["torch_cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts
