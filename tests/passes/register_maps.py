"""What the PTX ISA's text and figures say of matrix instructions: which thread holds which element
in which register, how descriptors find elements of shared memory, where the swizzle puts them.
Written from the document, apart from the fragments and layouts that the compiler uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Coord = tuple[int, int]
Map = Callable[[int, int], Coord]

# k of one instruction, by the type of its first operand
K = {
    "bfloat16": 16, "float16": 16, "tfloat32": 8, "float64": 8,
    "float8_e4m3fn": 32, "float8_e5m2": 32, "int8": 32, "uint8": 32,
}  # fmt: skip


def _lane(lane: int) -> Coord:
    """groupID and threadID_in_group."""
    return lane >> 2, lane % 4


# ── mma.m16n8 ────────────────────────────────────────────────────────────────────────────────


def mma_c(lane: int, i: int) -> Coord:
    """c0 … c3 of every shape: row = groupID for c0, c1 and groupID + 8 for c2, c3; column =
    threadID_in_group * 2 + (i & 1)."""
    group, thread = _lane(lane)
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def mma_a_k16(lane: int, i: int) -> Coord:
    """a0 … a7, 16 bits: row = groupID for i in 0, 1, 4, 5, else groupID + 8; column =
    threadID_in_group * 2 + (i & 1), + 8 for i >= 4."""
    group, thread = _lane(lane)
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)


def mma_b_k16(lane: int, i: int) -> Coord:
    """b0 … b3: row = threadID_in_group * 2 + (i & 1), + 8 for i >= 2; column = groupID."""
    group, thread = _lane(lane)
    return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group


def mma_a_k32(lane: int, i: int) -> Coord:
    """a0 … a15, 8 bits: row = groupID for 0 <= i < 4 and 8 <= i < 12, else groupID + 8; column =
    threadID_in_group * 4 + (i & 3), + 16 for i >= 8."""
    group, thread = _lane(lane)
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) + (16 if i >= 8 else 0)


def mma_b_k32(lane: int, i: int) -> Coord:
    """b0 … b7: row = threadID_in_group * 4 + (i & 3), + 16 for i >= 4; column = groupID."""
    group, thread = _lane(lane)
    return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group


def mma_a_k8(lane: int, i: int) -> Coord:
    """a0 … a3, tf32: row = groupID for a0 and a2, else groupID + 8; column = threadID_in_group for
    a0 and a1, else threadID_in_group + 4."""
    group, thread = _lane(lane)
    return (group if i in (0, 2) else group + 8), (thread if i in (0, 1) else thread + 4)


def mma_b_k8(lane: int, i: int) -> Coord:
    """b0, b1: row = threadID_in_group, + 4 for b1; column = groupID."""
    group, thread = _lane(lane)
    return (thread if i == 0 else thread + 4), group


MMA_A: dict[int, Map] = {16: mma_a_k16, 32: mma_a_k32, 8: mma_a_k8}
MMA_B: dict[int, Map] = {16: mma_b_k16, 32: mma_b_k32, 8: mma_b_k8}


# ── wgmma.m64nNk* ────────────────────────────────────────────────────────────────────────────


def wgmma_d(thread: int, i: int) -> Coord:
    """d[i] of m64nN: warp w of the warpgroup has rows 16 w … 16 w + 15; row = groupID, + 8 for
    the odd pairs; column = 8 * (i / 4) + threadID_in_group * 2 + (i & 1)."""
    group, lane = _lane(thread % 32)
    row = 16 * (thread // 32) + group + (8 if i // 2 % 2 else 0)
    return row, 8 * (i // 4) + lane * 2 + (i & 1)


def _by_warps(warp: Map) -> Map:
    """A's registers of a warpgroup: each warp holds 16 rows as in `mma`."""

    def where(thread: int, i: int) -> Coord:
        row, column = warp(thread % 32, i)
        return 16 * (thread // 32) + row, column

    return where


WGMMA_A: dict[int, Map] = {k: _by_warps(warp) for k, warp in MMA_A.items()}


# ── ldmatrix, stmatrix ───────────────────────────────────────────────────────────────────────


def matrix_row_lane(matrix: int, row: int) -> int:
    """The lane whose address is that of a row: threads 0–7 name matrix 0, 8–15 matrix 1, …"""
    return matrix * 8 + row


def matrix(lane: int, i: int, word: int, trans: bool) -> Coord:
    """(row, element of the row) of the i-th element in a lane's register, `word` elements of which
    fill it: row lane / 4, elements from word * (lane % 4) on; with .trans row and column change
    places."""
    row, column = lane // 4, lane % 4 * word + i
    return (column, row) if trans else (row, column)


# ── shared memory ────────────────────────────────────────────────────────────────────────────


def swizzled(address: Any, span: int) -> Any:
    """Swizzles of 128, 64, 32 bytes XOR address bits 4–6, 4–5, 4 with bits 7–9, 7–8, 7."""
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[span]
    return address ^ ((address >> 7 & (1 << bits) - 1) << 4)


def descriptor_address(code: int, mn: Any, k: Any, size: int, mn_major: bool) -> Any:
    """Where element (mn, k), `size` bytes, of a matrix lies that descriptor `code` names; numbers
    or arrays of them."""
    start, leading, stride = ((code >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    span = {0: 0, 1: 128, 2: 64, 3: 32}[code >> 62]
    if mn_major:
        assert size == 2, "other types are K-major"
        row = (span or 16) // size
        across, along = (leading, stride) if span else (stride, leading)
        offset = mn % row * size + mn // row * across + k % 8 * (span or 16) + k // 8 * along
    elif span:
        offset = mn % 8 * span + mn // 8 * stride + k * size
    else:
        unit = 16 // size
        offset = mn % 8 * 16 + mn // 8 * stride + k % unit * size + k // unit * leading
    return swizzled(start + offset, span)
