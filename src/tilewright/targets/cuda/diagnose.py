"""Diagnostic builds: a wait that does not end becomes an error that names the barrier.

Every wait for a barrier carries the number of its site. One that outlasts its limit notes where
it stands in memory of the host, which outlives the trap that follows. Threads that meet (`sync`)
cannot look at a clock, so they note where they stand beforehand and the host watches. Launches
wait for their kernel, and a failure is told from the records: which barrier, phase, role, block,
thread and line.

A record says what kind of standing it is and at which site; what else a kernel may report
(assertions) needs a kind and sites of its own, not another road.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from tilewright.ir.core import *
from tilewright.ir.text import print_expr
from tilewright.support import env
from tilewright.support.errors import HangError, TilewrightError
from tilewright.targets.cuda.driver import Device
from tilewright.targets.cuda.emit import Site
from tilewright.targets.cuda.launch import CudaModule, LaunchSpec, Step

SYMBOL = "tw_report"
RECORDS = 256 * 64  # multiprocessors × warps
NOT_READY = 600


class Standing(IntEnum):
    """What a record says its warp does; `Standing` in tilewright.cuh."""

    NOWHERE, WAITING, EXPIRED, MEETING = range(4)


@dataclass(frozen=True)
class Record:
    """One warp's record: `Record` in tilewright.cuh, eight words."""

    standing: Standing
    site: int
    block: tuple[int, int, int]
    thread: int
    detail: int
    since: int  # nanoseconds

    @staticmethod
    def read(words: Sequence[int]) -> Record:
        standing, site, x, yz, thread, detail, low, high = words
        block = (x, yz & 0xFFFF, yz >> 16)
        return Record(Standing(standing), site, block, thread, detail, low | high << 32)


def _since(record: Record) -> int:
    return record.since


class Report:
    """The records of a module on one device."""

    def __init__(self, host: int, device: int) -> None:
        self.device = device
        words = (ctypes.c_uint32 * (8 * RECORDS)).from_address(host)
        self.words = np.ctypeslib.as_array(words).reshape(RECORDS, 8)
        self.words[:] = 0
        self.limit = 0.0

    def header(self) -> bytes:
        """`Report` in tilewright.cuh."""
        return struct.pack("<QQQ", self.device, RECORDS, round(self.limit * 1e9))

    def records(self, *kinds: Standing) -> list[Record]:
        """Those of these kinds, the longest standing first."""
        rows = self.words[np.isin(self.words[:, 0], kinds)]
        return sorted(map(Record.read, rows.tolist()), key=_since)


def wait_limit() -> float:
    """Seconds that a wait may take (TILEWRIGHT_WAIT_SECONDS)."""
    try:
        seconds = float(env.WAIT_SECONDS())
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise LaunchError(
            f"{env.WAIT_SECONDS.name} must be a number of seconds",
            expected="more than 0, at most 3600",
            got=repr(env.WAIT_SECONDS()),
        )
    return seconds


# ── words ────────────────────────────────────────────────────────────────────────────────────


def describe(site: Site, record: Record) -> str:
    """The op with its values: `wait full[1] phase 0`."""
    if site.barrier is not None:
        where = np.unravel_index(record.detail >> 1, site.barrier.static_shape or (1,))
        slot = ", ".join(str(int(i)) for i in where)
        return f"wait {site.barrier.name}[{slot}] phase {record.detail & 1}"
    assert isinstance(site.op, Sync)
    if site.op.scope == "named":
        return f"sync named id={record.detail} threads={site.op.threads}"
    return f"sync {site.op.scope}"


def whereabouts(site: Site, record: Record) -> str:
    """Kernel, role, block and thread."""
    parts = [f"kernel {site.kernel.name}"]
    role = site.role
    if role is not None:
        parts.append(f"role {role.name}")
        if role.instances > 1:
            instance = (record.thread // 32 - role.first) // (role.warps // role.instances)
            parts[-1] += f" instance {instance}"
    return ", ".join([*parts, f"block {record.block}", f"thread {record.thread}"])


def hang(sites: Sequence[Site], found: Sequence[Record], limit: float) -> HangError:
    """The error for `found`: its first record, and where the others stand, in order of time."""
    first = found[0]
    site = sites[first.site]
    notes = [_arrivals(site)] if site.barrier is not None else []
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in sorted(found[1:], key=_since):
        groups.setdefault((record.site, describe(sites[record.site], record)), []).append(record)
    for (number, what), records in list(groups.items())[:8]:
        other = sites[number]
        more = f" and {len(records) - 1} other warps" if len(records) > 1 else ""
        away = (records[0].since - first.since) / 1e6
        notes.append(
            f"`{what}` also stands, since {abs(away):.3f} ms {'later' if away > 0 else 'before'}, "
            f"{other.op.loc or 'line unknown'}: {whereabouts(other, records[0])}{more}"
        )
    if first.standing is Standing.MEETING:
        fix = "see that every warp that takes part comes here, and counts the same threads"
        notes.append("the kernel still runs and nothing can stop it: end this process")
    else:
        fix = "see that every arrival it needs is made, with its bytes, on every path"
        notes.append("the CUDA context is lost: nothing more runs on the GPU in this process")
    return HangError(
        f"`{describe(site, first)}` did not end within {limit:g} s",
        loc=site.op.loc,
        got=whereabouts(site, first),
        notes=tuple(notes),
        fix=f"{fix}; if it is only slow, raise {env.WAIT_SECONDS.name}",
    )


def _arrivals(site: Site) -> str:
    """What a phase of the site's barrier needs and who contributes."""
    count, found = "", list[str]()
    for op in walk_ops(site.kernel):
        if isinstance(op, BarrierInit) and op.barrier.buffer == site.barrier:
            count = f" {print_expr(op.count)}"
        regions = [op.barrier] if isinstance(op, Arrive) else []
        if isinstance(op, Intrinsic) and op.name != "wait_cluster":
            regions = [a for a in op.args if isinstance(a, Region)]
        if op.loc is not None and any(r.buffer == site.barrier for r in regions):
            here = site.op.loc is not None and site.op.loc.file == op.loc.file
            found.append(f"line {op.loc.line}" if here else str(op.loc))
    assert site.barrier is not None
    if not found:
        return f"nothing in the kernel arrives at {site.barrier.name}"
    places = ", ".join(dict.fromkeys(found))
    return f"{site.barrier.name} takes{count} arrivals, and bytes, from {places}"


# ── launching ────────────────────────────────────────────────────────────────────────────────


class DiagnosticModule(CudaModule):
    """A module whose launches wait for their kernels and raise `HangError` for those that hang."""

    waits = True

    def __init__(
        self, cubin: bytes, specs: Sequence[LaunchSpec], sites: Sequence[Site], **more: Any
    ) -> None:
        super().__init__(cubin, specs, **more)
        self.sites = tuple(sites)
        self._reports: dict[int, Report] = {}

    def report(self, device: Device) -> Report | None:
        """Where the module's kernels report; None if they never wait."""
        if not self.sites:
            return None
        if device.ordinal not in self._reports:
            self._reports[device.ordinal] = Report(*self.driver.host_memory(device, 32 * RECORDS))
        report, limit = self._reports[device.ordinal], wait_limit()
        if report.limit != limit:
            report.limit = limit
            module = self.load(device.ordinal).module
            self.driver.set_global(device, module, SYMBOL, report.header())
        return report

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            failure = None
            try:
                with self.driver.active(step.device):
                    failure = self._run(step)
            except TilewrightError:  # a context that is lost may not be left in order either
                if failure is None:
                    raise
            if failure is not None:
                raise failure

    def _run(self, step: Step) -> TilewrightError | None:
        """Launch and wait until the kernel has ended, or a warp has met nobody for too long."""
        stream = step.config.stream or 0
        if self.driver.is_capturing(stream):
            raise LaunchError(
                f"a diagnostic build waits for {step.spec.kernel}: no graph can capture it",
                fix="capture an ordinary build",
            )
        report = self.report(step.device)
        super().run((step,))
        looked, before, pause = time.monotonic(), None, 20e-6
        while (status := self.driver.query(stream)) == NOT_READY:
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
            # a little longer than the device waits, whose word is the better one
            if report is not None and time.monotonic() - looked > 1.25 * report.limit:
                looked, seen = time.monotonic(), report.words.copy()
                if before is not None:
                    same = (seen == before).all(axis=1) & (seen[:, 0] == Standing.MEETING)
                    if same.any():
                        stuck = sorted(map(Record.read, seen[same].tolist()), key=_since)
                        return self._hang(report, stuck)
                before = seen
        return self._failure(status, step, report) if status else None

    def _hang(self, report: Report, first: list[Record]) -> HangError:
        others = report.records(Standing.WAITING, Standing.EXPIRED, Standing.MEETING)
        found = [*first, *(record for record in others if record not in first)]
        return hang(self.sites, found, report.limit)

    def _failure(self, status: int, step: Step, report: Report | None) -> TilewrightError:
        if report is not None and report.records(Standing.EXPIRED):
            # who waits longest is to blame; that another's clock was read first means little
            return self._hang(report, report.records(Standing.EXPIRED, Standing.WAITING))
        return self.driver.error(status, f"{step.spec.kernel} was waited for")
