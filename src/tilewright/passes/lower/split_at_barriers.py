"""A block's threads as loops between barriers.

Thread-level code runs, on a machine without threads of its own, as one loop over the block's
threads per stretch of code without a barrier. What a thread keeps across a barrier (scalars and
local buffers) gets a place per thread; shuffles, votes and warp reductions are barriers whose
result is read from such places. Control flow around a barrier has to be the same for all threads;
a guard around shuffles need not be: it becomes a mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.analysis.uniform import Cause
from tilewright.passes.lower.core import *

_COLLECTIVE = (Map, Gemm, Reduce, Scan)
_FOLDS = {"any_sync": "or", "all_sync": "and", "ballot": "or"}
_SYMBOLS = {"sum": "+", "max": "max", "min": "min", "and": "&", "or": "|"}


@kernel_pass
def split_at_barriers(at: Facts) -> Kernel:
    """Turn statements of threads into maps over the thread indices."""
    return _Splitter(at.kernel).run()


def _convergent(op: Op) -> bool:
    return isinstance(op, Intrinsic) and INTRINSICS[op.name].convergent


def _prints(op: Op) -> bool:
    return any(each.name == "print" for each in walk_ops(op, Intrinsic))


class _Splitter:
    """The stretches of a kernel, `groups`: maps over its thread indices."""

    def __init__(self, kernel: Kernel) -> None:
        # an index that has one value makes nothing differ between threads
        single: dict[Var, Expr] = {
            var: const(0, var.dtype)
            for var, extent in zip(kernel.thread_vars, kernel.threads, strict=True)
            if extent == 1
        }
        self.kernel = kernel = replace(kernel, body=substitute_vars(kernel.body, single))
        found = per_thread(kernel)
        self.controls = found.controls
        self.spread = self._spread(found)
        self.apart = replace(found, causes={**found.causes, **{b: Cause(b) for b in self.spread}})
        self.count = kernel.thread_count
        self.lin = kernel.thread
        self.tiles: list[Op] = []
        self.groups: list[Map] = []
        self.reaching: Any = np.ones(self.count, bool)  # threads that come here; None: unknown

    def _spread(self, known: PerThread) -> set[Buffer]:
        """Uniform locals that get a place per thread all the same: written in a loop that
        threads leave on their own, which therefore each thread runs by itself."""
        found: set[Buffer] = set()
        for loop in walk_ops(self.kernel.body, For, While):
            if not any(id(op) in self.controls for op in _outside_loops(loop.body) if _leaves(op)):
                continue
            inside = list(walk_ops(loop.body))
            if any(isinstance(op, (Sync, *_COLLECTIVE)) or _convergent(op) for op in inside):
                continue
            written = [buffer for op in inside for buffer in written_buffers(op)]
            written += [op.buffer for op in inside if isinstance(op, Alloc)]
            found |= {buffer for buffer in written if buffer.is_local}
        return found - known.buffers

    def run(self) -> Kernel:
        for op in walk_ops(self.kernel.body):
            if isinstance(op, _COLLECTIVE):
                self._check_spread(op)
        body = self.body(self.kernel.body, TRUE)
        self._place_values()
        numbers = {id(group): number for number, group in enumerate(self.groups)}

        def finish(op: Op) -> Body | None:
            return self._finish(op, numbers[id(op)]) if id(op) in numbers else None

        body = map_body(body, finish)
        return replace(self.kernel, body=(*self.tiles, *body))

    def _check_spread(self, op: Op) -> None:
        used = {b for inner in walk_ops((op,)) for b in _buffers(inner)} & self.spread
        if used:
            name = min(b.name for b in used)
            raise CompileError(
                f"a tile operation uses {name}, which is written in a loop that threads leave on "
                "their own",
                loc=op.loc,
                fix=f"copy {name} to another T.alloc_var after the loop, or break on a condition "
                "that all threads of the block share",
            )

    # ── what runs per thread ─────────────────────────────────────────────────────────────────

    def mentions(self, op: Op) -> bool:
        """`op`, bodies aside, differs between threads."""
        named = any(b in self.apart.causes for b in _buffers(op))
        return named or self.apart.source(expressions(op)) is not None

    def waits(self, op: Op) -> bool:
        """Something in `op` needs all threads of the block or warp."""
        if isinstance(op, (Sync, *_COLLECTIVE)) or _convergent(op):
            return True
        return any(self.waits(inner) or self.once(inner) for body in bodies(op) for inner in body)

    def once(self, op: Op) -> bool:
        """The block does `op` once, whatever its threads do around it."""
        effect = isinstance(op, (Store, Atomic, Intrinsic)) or (
            isinstance(op, Alloc) and op.init is not None and op.buffer.is_local
        )
        return effect and id(op) not in self.controls and not self.mentions(op)

    # ── grouping ─────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, mask: Expr) -> Body:
        """`body` with maps over the threads in place of what each thread does by itself."""
        out: list[Op] = []
        group: list[Op] = []

        def flush() -> None:
            if group:
                vars_ = tuple(reversed(self.kernel.thread_vars))
                extents = tuple(const(n) for n in reversed(self.kernel.threads))
                inside = guarded(mask, tuple(group))
                self.groups.append(Map(vars_, extents, inside, loc=group[0].loc))
                out.append(self.groups[-1])
                group.clear()

        for op in body:
            if isinstance(op, Sync):
                self._check_sync(op, mask)
                flush()
            elif isinstance(op, Intrinsic) and _convergent(op):
                before, store, between, after = self._exchange(op, mask)
                if before:
                    flush()
                out += before
                group.append(store)
                flush()
                out += between
                group += after
            elif self.waits(op):
                flush()
                out += self._structure(op, mask)
            elif mask is not TRUE or any(map(self.mentions, walk_ops(op))):
                _check_group(op)
                if _prints(op):  # in the order of the text, for all threads
                    flush()
                group.append(op)
                if _prints(op):
                    flush()
            else:
                # nothing the group does can change a pure value
                if not (isinstance(op, Let) and is_pure(op.value)) and not (
                    isinstance(op, (Alloc, Hint, Fence)) and getattr(op, "init", None) is None
                ):
                    flush()
                out.append(op)
        flush()
        return tuple(out)

    def _check_sync(self, op: Sync, mask: Expr) -> None:
        if op.arrive or op.scope == "cluster":
            raise CompileError(
                f"the CPU target cannot split a block at this barrier ({op.scope})",
                loc=op.loc,
                fix="run it with target='interp', or compile it for target='cuda'",
            )
        known = op.scope == "named" and self.reaching is not None
        if known and op.threads == np.count_nonzero(self.reaching):
            return  # the guard lets through exactly the threads that meet here
        if mask is not TRUE and op.scope != "warp":
            raise CompileError(
                "a block barrier stands under a guard that differs between threads",
                loc=op.loc,
                fix="move sync_threads out of the guard",
            )

    def _structure(self, op: Op, mask: Expr) -> Body:
        """A statement that has barriers inside."""
        if isinstance(op, _COLLECTIVE):
            if mask is not TRUE:
                raise CompileError(
                    "a tile operation stands under a guard that differs between threads",
                    loc=op.loc,
                    fix="make the guard uniform, or write it with thread-level loads and stores",
                )
            return (op,)
        if isinstance(op, If) and (self.apart.source(op.cond) is not None or mask is not TRUE):
            return self._masked(op, mask)
        if self.mentions(op):
            raise CompileError(
                "control flow around a barrier differs between threads",
                loc=op.loc,
                expected="loop bounds and conditions that all threads of the block share",
                fix="take the barrier out, or guard the statements inside instead",
            )
        return (map_bodies(op, lambda body: self.body(body, mask)),)

    def _masked(self, op: If, mask: Expr) -> Body:
        flag, place = self._tile("guard", BOOL), (self.lin,)
        held, outer = Load(flag, place), self.reaching
        taken = None if outer is None else self._where(op.cond)
        out = self.body((Store(flag, place, truth(op.cond), loc=op.loc),), mask)
        self.reaching = None if taken is None else outer & taken
        out += self.body(op.then, binary("and", mask, held))
        self.reaching = None if taken is None else outer & ~taken
        out += self.body(op.orelse, binary("and", mask, logical_not(held)))
        self.reaching = outer
        return out

    def _where(self, cond: Expr) -> Any:
        """The threads for which a condition over thread indices alone holds."""
        values, rest = {}, np.arange(self.count)
        for var, extent in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
            values[var], rest = rest % extent, rest // extent
        try:
            return np.broadcast_to(evaluate(cond, values), (self.count,)) != 0
        except (CompileError, KeyError):  # it reads something else
            return None

    def _tile(self, stem: str, dtype: DType, shape: tuple[int, ...] = (), count: int = 0) -> Buffer:
        """Memory with one element per thread, thread index innermost."""
        sizes = tuple(const(n) for n in (*shape, count or self.count))
        buffer = Buffer(fresh_name(f"{stem}_each"), sizes, dtype, Space.SHARED)
        self.tiles.append(Alloc(buffer))
        return buffer

    # ── exchanges between threads ────────────────────────────────────────────────────────────

    def _exchange(self, op: Intrinsic, mask: Expr) -> tuple[Body, Op, Body, Body]:
        """What runs before the group that ends here, what ends it, what runs after it, and what
        the next group starts with."""
        value, *more = (Load(a.buffer, a.starts) if isinstance(a, Region) else a for a in op.args)
        width, me = op.width or WARP, self.lin
        if op.name.startswith("shfl_"):
            tile = self._tile("lane", value.dtype)
            source = self._source(op.name.removeprefix("shfl_"), more[0], width)
            result = self._result(op, Load(tile, (source,)))
            return (), Store(tile, (me,), value, loc=op.loc), (), result
        if op.name in _FOLDS:
            value = truth(value)
        fold = _FOLDS.get(op.name) or op.name.removeprefix("warp_reduce_")
        padded = -(-self.count // WARP) * WARP
        tile = self._tile("lane", value.dtype, count=padded)
        w, lane = fresh_var("w"), fresh_var("l")
        fill: Body = ()
        if mask is not TRUE or padded != self.count:
            # a lane that is switched off, or does not exist, must not count
            every = fresh_var("w")
            neutral = Store(tile, (every,), identity(fold, value.dtype))
            fill = (Map((every,), (const(padded),), (neutral,)),)
        part: Expr = Load(tile, (w * width + lane,))
        if op.name == "ballot":
            word = DTYPES["uint32"]
            part = cast(part, word) << cast(lane, word)
        total, spot = self._tile("total", part.dtype, count=padded // width), (w,)
        folded = binary(_SYMBOLS[fold], Load(total, spot), part)
        step = For(lane, const(1), const(width), (Store(total, spot, folded, loc=op.loc),))
        start = Store(total, spot, substitute(part, {lane: const(0)}))
        folds = Map((w,), (const(padded // width),), (start, step))
        result = self._result(op, Load(total, (me // width,)))
        return fill, Store(tile, (me,), value, loc=op.loc), (folds,), result

    def _result(self, op: Intrinsic, value: Expr) -> Body:
        result = op.result
        return () if result is None else (Let(result, cast(value, result.dtype), loc=op.loc),)

    def _source(self, kind: str, by: Expr, width: int) -> Expr:
        """The thread each thread reads from, itself where there is none."""
        me = self.lin
        lane = me % WARP
        base = lane // width * width
        by = cast(by, INT32)
        target = {
            "sync": base + by % width,
            "xor": lane ^ by,
            "up": lane - by,
            "down": lane + by,
        }[kind]
        other = me - lane + target
        inside = logical_and(target >= base, target < base + width)
        return select(logical_and(inside, other < self.count), other, me)

    # ── values that outlive a group ──────────────────────────────────────────────────────────

    def _place_values(self) -> None:
        """Places for what threads keep from one group to another."""
        self.home: dict[Buffer | Var, int] = {}
        uses: dict[Buffer | Var, set[int]] = {}
        for number, group in enumerate(self.groups):
            for op in walk_ops(group.body):
                made = (op.buffer,) if isinstance(op, Alloc) else ()
                self.home.update(dict.fromkeys((*made, *bound(op)), number))
                touched: list[Buffer | Var] = [*_buffers(op), *read_variables((op,))]
                for each in touched:
                    uses.setdefault(each, set()).add(number)
        self.expanded: dict[str, Buffer] = {}
        for each, where in uses.items():
            if not isinstance(each, Buffer) or each not in self.apart.causes:
                continue
            if each.is_local and where != {self.home.get(each)}:
                self.expanded[each.name] = self._tile(each.name, each.dtype, each.static_shape)
        self.stored = {
            var: self._tile(var.name, var.dtype)
            for var, home in self.home.items()
            if isinstance(var, Var) and var in self.apart.causes and uses.get(var, set()) - {home}
        }

    def _finish(self, group: Op, number: int) -> Body:
        """`group` with what it keeps, and what others kept for it, in its place per thread."""
        assert isinstance(group, Map)
        inside = map_body(group.body, self._kept)
        if not inside:
            return ()
        wanted = {v for v in read_variables(inside) & self.stored.keys() if self.home[v] != number}
        own = self._renamed(sorted(wanted, key=lambda v: v.name))
        lead = [Let(name, Load(self.stored[v], (self.lin,))) for v, name in own.items()]
        inside = (*lead, *substitute_vars(inside, dict(own)))
        vars_ = self._renamed(self.kernel.thread_vars)
        inside = substitute_vars(inside, dict(vars_))
        return (rebuild(group, vars=(*reversed(vars_.values()),), body=inside),)

    def _renamed(self, old: Iterable[Var]) -> dict[Var, Var]:
        return {v: fresh_var(v.name, dtype=v.dtype) for v in old}

    def _kept(self, op: Op) -> Body:
        """`op` on its thread's share of expanded buffers; values that other groups need are stored
        where they are made."""
        big, lin = self.expanded, self.lin

        def own(e: Load) -> Expr | None:
            tile = big.get(e.buffer.name)
            return None if tile is None else Load(tile, (*e.indices, lin), e.loc)

        def share(x: Any) -> Any:
            if not isinstance(x, Region) or x.buffer.name not in big:
                return x
            return Region(big[x.buffer.name], (*x.starts, lin), (*x.extents, const(1)))

        op = map_loads(op, own)
        match op:
            case If(then=(), orelse=()):
                return ()
            case Store() if op.buffer.name in big:
                op = replace(op, buffer=big[op.buffer.name], indices=(*op.indices, lin))
            case Alloc() if op.buffer.name in big:
                if op.init is None:
                    return ()
                op = Store(big[op.buffer.name], (lin,), op.init, loc=op.loc)
            case Atomic():
                op = replace(op, dst=share(op.dst))
            case Intrinsic():
                op = replace(op, args=tuple(map(share, op.args)))
        kept = [var for var in bound(op) if var in self.stored]
        return (op, *(Store(self.stored[var], (lin,), var, loc=op.loc) for var in kept))


def _outside_loops(body: Body) -> Iterator[Op]:
    """Every op of `body`, less what stands in loops there."""
    for op in body:
        yield op
        if not isinstance(op, (For, While)):
            for inner in bodies(op):
                yield from _outside_loops(inner)


def _leaves(op: Op) -> bool:
    return isinstance(op, (Break, Continue))


def _check_group(group: Op) -> None:
    """No thread may leave, on its own, a loop that all threads run together; nor see its own
    memory under two names."""
    for op in _outside_loops((group,)):
        if isinstance(op, View):
            raise CompileError(
                f"{op.buffer.name} is a view of {op.source.name}, which every thread has its own "
                "of",
                loc=op.loc,
                fix="index the buffer itself",
            )
        if _leaves(op):
            raise CompileError(
                "a thread leaves, on its own, a loop in which the block does something together",
                got="a barrier, a tile operation, or a store that does not depend on the thread",
                loc=op.loc,
                fix="break on a condition that all threads of the block share",
            )


def _buffers(op: Op) -> tuple[Buffer, ...]:
    return (*named_buffers(op), *written_buffers(op))
