"""Prints say which block and thread speaks, and of which buffer (`ir.messages`)."""

from __future__ import annotations

from tilewright.ir.messages import label_kernel
from tilewright.ir.op import Kernel
from tilewright.ir.target import Target


def label_prints(kernel: Kernel, target: Target) -> Kernel:
    return label_kernel(kernel)
