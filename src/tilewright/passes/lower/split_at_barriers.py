"""A block's threads as loops between barriers.

Thread-level code runs, on a machine without threads of its own, as one loop over the block's
threads per stretch of code without a barrier. What a thread keeps across a barrier (scalars and
local buffers) gets a place per thread; shuffles, votes and warp reductions are barriers whose
result is read from such places. Control flow around a barrier has to be the same for all threads;
a guard around shuffles need not be: it becomes a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tilewright.ir.analysis.uniform import per_thread
from tilewright.ir.bind import static_value
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.dtype import BOOL, DTYPES, INT32, DType
from tilewright.ir.expr import (
    TRUE,
    Bin,
    Cmp,
    Const,
    Expr,
    Load,
    Var,
    binary,
    cast,
    compare,
    const,
    is_pure,
    logical_not,
    select,
    transform,
    truth,
    variables,
    walk,
)
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    Break,
    Continue,
    Fence,
    For,
    Gemm,
    Hint,
    If,
    Intrinsic,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Reduce,
    Scan,
    Store,
    Sync,
    View,
    While,
    bodies,
    bound,
    expressions,
    marked,
    named_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import (
    fresh_name,
    fresh_var,
    map_body,
    map_kernels,
    map_operands,
    program_names,
    rebuild,
    substitute_vars,
)
from tilewright.ir.target import Target
from tilewright.passes.lower.lowering import linear_thread
from tilewright.support.errors import CompileError

WARP = 32
_COLLECTIVE = (Map, Gemm, Reduce, Scan)


@dataclass
class _Group:
    """Statements that every thread runs without waiting for another."""

    ops: list[Op] = field(default_factory=list)
    mask: Expr = TRUE


_Item = Op | _Group | tuple[Op, dict[str, list["_Item"]]]


def split_at_barriers(program: Program, target: Target) -> Program:
    """Per-thread statements become maps over the thread indices."""
    names = program_names(program)
    return map_kernels(program, lambda kernel: _Splitter(kernel, names).run())


def _convergent(op: Op) -> bool:
    return isinstance(op, Intrinsic) and INTRINSICS[op.name].convergent


def _prints(op: Op) -> bool:
    return any(isinstance(each, Intrinsic) and each.name == "print" for each in walk_ops((op,)))


class _Splitter:
    def __init__(self, kernel: Kernel, names: set[str]) -> None:
        # an index that has one value makes nothing differ between threads
        single: dict[Var, Expr] = {
            var: const(0, var.dtype)
            for var, extent in zip(kernel.thread_vars, kernel.threads, strict=True)
            if extent == 1
        }
        self.kernel = kernel = replace(kernel, body=substitute_vars(kernel.body, single))
        found = per_thread(kernel)
        self.vars = set(found.vars) | set(kernel.thread_vars)
        self.buffers = {b.name for b in found.buffers}
        self.controls = found.controls
        self.spread = self._spread()
        self.names = names
        self.count = prod(kernel.threads)
        self.lin = linear_thread(kernel)
        self.tiles: list[Op] = []
        self.stored: dict[Var, Buffer] = {}
        self.reaching: frozenset[int] | None = frozenset(range(self.count))

    def _spread(self) -> set[str]:
        """Uniform locals that get a place per thread all the same: written in a loop that
        threads leave on their own, which therefore each thread runs by itself."""
        found: set[str] = set()
        for loop in walk_ops(self.kernel.body):
            if not isinstance(loop, (For, While)) or not any(
                id(leave) in self.controls for leave in _leaves(loop.body)
            ):
                continue
            inside = list(walk_ops(loop.body))
            if any(isinstance(op, (Sync, *_COLLECTIVE)) or _convergent(op) for op in inside):
                continue
            written = [buffer for op in inside for buffer in written_buffers(op)]
            written += [op.buffer for op in inside if isinstance(op, Alloc)]
            found |= {buffer.name for buffer in written if buffer.space is Space.LOCAL}
        found -= self.buffers
        self.buffers |= found
        return found

    def run(self) -> Kernel:
        for op in walk_ops(self.kernel.body):
            if isinstance(op, _COLLECTIVE):
                self._check_spread(op)
        items = self.items(self.kernel.body, TRUE)
        self._place_values(items)
        body = self.emit(items)
        return replace(self.kernel, body=(*self.tiles, *body))

    def _check_spread(self, op: Op) -> None:
        used = {b.name for inner in walk_ops((op,)) for b in _buffers(inner)} & self.spread
        if used:
            name = min(used)
            raise CompileError(
                f"a tile operation uses {name}, which is written in a loop that threads leave on "
                "their own",
                loc=op.loc,
                fix=f"copy {name} to another T.alloc_var behind the loop, or break on a condition "
                "that all threads of the block share",
            )

    # ── what runs per thread ─────────────────────────────────────────────────────────────────

    def mentions(self, op: Op) -> bool:
        """`op`, bodies aside, differs between threads."""
        return any(self.differs(e) for e in expressions(op)) or any(
            b.name in self.buffers for b in _buffers(op)
        )

    def differs(self, e: Expr) -> bool:
        return any(
            (isinstance(node, Var) and node in self.vars)
            or (isinstance(node, Load) and node.buffer.name in self.buffers)
            for node in walk(e)
        )

    def threaded(self, op: Op) -> bool:
        if isinstance(op, Map):
            # a map's own locals are private to its iterations, whoever else has locals
            own = {b.name for inner in walk_ops(op.body) for b in written_buffers(inner)
                   if b.space is Space.LOCAL}  # fmt: skip
            kept, self.buffers = self.buffers, self.buffers - own
            found = any(self.mentions(inner) for inner in walk_ops(op))
            self.buffers = kept
            return found
        return self.mentions(op) or any(
            self.threaded(inner) for body in bodies(op) for inner in body
        )

    def waits(self, op: Op) -> bool:
        """Something in `op` needs all threads of the block or warp."""
        if isinstance(op, Sync) or _convergent(op):
            return True
        if isinstance(op, Map):
            return not self.threaded(op)
        if isinstance(op, _COLLECTIVE):
            return True
        return any(self.waits(inner) or self.once(inner) for body in bodies(op) for inner in body)

    def once(self, op: Op) -> bool:
        """The block does `op` once, whatever its threads do around it."""
        effect = isinstance(op, (Store, Atomic, Intrinsic)) or (
            isinstance(op, Alloc) and op.init is not None and op.buffer.space is Space.LOCAL
        )
        return effect and id(op) not in self.controls and not self.mentions(op)

    # ── grouping ─────────────────────────────────────────────────────────────────────────────

    def items(self, body: Body, mask: Expr) -> list[_Item]:
        out: list[_Item] = []
        group = _Group(mask=mask)

        def flush() -> None:
            nonlocal group
            if group.ops:
                out.append(group)
            group = _Group(mask=mask)

        for op in body:
            if isinstance(op, Sync):
                self._check_sync(op, mask)
                flush()
            elif isinstance(op, Intrinsic) and _convergent(op):
                before, after = self._exchange(op, group, mask)
                flush()
                out += before
                group.ops += after
            elif self.waits(op):
                flush()
                out += self._structure(op, mask)
            elif self.threaded(op) or mask is not TRUE:
                _check_group(op)
                if _prints(op):  # in the order of the text, for all threads
                    flush()
                group.ops.append(_loops(op) if isinstance(op, Map) else op)
                if _prints(op):
                    flush()
            elif (isinstance(op, Let) and is_pure(op.value)) or (
                isinstance(op, (Alloc, Hint, Fence)) and getattr(op, "init", None) is None
            ):
                # nothing the group does can change it
                out.append(op)
            else:
                flush()
                out.append(op)
        flush()
        return out

    def _check_sync(self, op: Sync, mask: Expr) -> None:
        if op.arrive or op.scope == "cluster":
            raise CompileError(
                f"the CPU target cannot split a block at this barrier ({op.scope})",
                loc=op.loc,
                fix="run it with target='interp', or compile it for target='cuda'",
            )
        alone = op.scope == "named" and self.reaching is not None
        if alone and op.threads == len(self.reaching or ()):
            return  # the guard lets through exactly the threads that meet here
        if mask is not TRUE and op.scope != "warp":
            raise CompileError(
                "a barrier of the block stands under a guard that differs between threads",
                loc=op.loc,
                fix="move sync_threads out of the guard",
            )

    def _structure(self, op: Op, mask: Expr) -> list[_Item]:
        """A statement that has barriers inside."""
        if isinstance(op, _COLLECTIVE):
            if mask is not TRUE:
                raise CompileError(
                    "a tile operation stands under a guard that differs between threads",
                    loc=op.loc,
                    fix="make the guard uniform, or write it with thread-level loads and stores",
                )
            return [op]
        if isinstance(op, If) and (self.differs(op.cond) or mask is not TRUE):
            return self._masked(op, mask)
        if self.mentions(op):
            raise CompileError(
                "control flow around a barrier differs between threads",
                loc=op.loc,
                expected="loop bounds and conditions that all threads of the block share",
                fix="take the barrier out, or guard the statements inside instead",
            )
        return [(op, _inner(op, lambda body: self.items(body, mask)))]

    def _masked(self, op: If, mask: Expr) -> list[_Item]:
        flag, place = self._tile("guard", BOOL), (self.lin,)
        held = Load(flag, place)
        out: list[_Item] = [_Group([Store(flag, place, truth(op.cond), loc=op.loc)], mask)]
        outer, taken = self.reaching, self._where(op.cond)
        self.reaching = None if outer is None or taken is None else outer & taken
        out += self.items(op.then, binary("and", mask, held))
        self.reaching = None if outer is None or taken is None else outer - taken
        out += self.items(op.orelse, binary("and", mask, logical_not(held)))
        self.reaching = outer
        return out

    def _where(self, cond: Expr) -> frozenset[int] | None:
        """The threads for which a condition over thread indices alone holds."""
        used = set(variables(cond))
        plain = all(isinstance(node, (Var, Const, Bin, Cmp)) for node in walk(cond))
        if not plain or not used <= set(self.kernel.thread_vars):
            return None
        found = set()
        for thread in range(self.count):
            values, rest = {}, thread
            for var, extent in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
                values[var], rest = rest % extent, rest // extent
            if static_value(cond, values):
                found.add(thread)
        return frozenset(found)

    def _tile(self, stem: str, dtype: DType, shape: tuple[int, ...] = (), count: int = 0) -> Buffer:
        """Memory with one element per thread, thread index innermost."""
        sizes = tuple(const(n) for n in (*shape, count or self.count))
        buffer = Buffer(fresh_name(f"{stem}_each", self.names), sizes, dtype, Space.SHARED)
        self.tiles.append(Alloc(buffer))
        return buffer

    # ── exchanges between threads ────────────────────────────────────────────────────────────

    def _exchange(self, op: Intrinsic, group: _Group, mask: Expr) -> tuple[list[_Item], list[Op]]:
        """(what runs between the groups, what the next group starts with)."""
        arguments = [Load(a.buffer, a.starts) if isinstance(a, Region) else a for a in op.args]
        value, result = arguments[0], op.result
        if op.name in ("ballot", "any_sync", "all_sync"):
            value = truth(value)
        me = self.lin
        if op.name.startswith("shfl_"):
            tile = self._tile("lane", value.dtype)
            group.ops.append(Store(tile, (me,), value, loc=op.loc))
            source = self._source(op.name.removeprefix("shfl_"), arguments[1], op.width or WARP)
            return [], self._result(result, Load(tile, (source,)), op)
        padded = -(-self.count // WARP) * WARP
        tile = self._tile("lane", value.dtype, count=padded)
        kind = {"any_sync": "or", "all_sync": "and", "ballot": "ballot"}.get(op.name)
        kind = kind or op.name.removeprefix("warp_reduce_")
        neutral = _neutral(kind, value.dtype)
        if mask is not TRUE or padded != self.count:
            # a lane that is switched off, or does not exist, must not count
            every = fresh_var("w", self.names)
            fill = Map((every,), (const(padded),), (Store(tile, (every,), neutral),))
            head: list[_Item] = [_Group(list(group.ops), group.mask)] if group.ops else []
            group.ops.clear()
            head += [fill, _Group([Store(tile, (me,), value, loc=op.loc)], mask)]
        else:
            group.ops.append(Store(tile, (me,), value, loc=op.loc))
            head = []
        if kind == "ballot":
            return self._ballot(op, tile, padded, head)
        width = op.width or WARP
        half = width // 2
        while half:
            g, k = fresh_var("g", self.names), fresh_var("k", self.names)
            low = g * width + k
            folded = binary(_SYMBOLS[kind], Load(tile, (low,)), Load(tile, (low + half,)))
            store = Store(tile, (low,), folded, loc=op.loc)
            head.append(Map((g, k), (const(padded // width), const(half)), (store,)))
            half //= 2
        return head, self._result(result, Load(tile, (me // width * width,)), op)

    def _ballot(
        self, op: Intrinsic, tile: Buffer, padded: int, head: list[_Item]
    ) -> tuple[list[_Item], list[Op]]:
        word = DTYPES["uint32"]
        votes = self._tile("votes", word, count=padded // WARP)
        w, lane = fresh_var("w", self.names), fresh_var("l", self.names)
        bit = cast(Load(tile, (w * WARP + lane,)), word)
        added = Load(votes, (w,)) | (bit << cast(lane, word))
        add = Store(votes, (w,), added, loc=op.loc)
        clear = Store(votes, (w,), const(0, word))
        loop = For(lane, const(0), const(WARP), (add,))
        head.append(Map((w,), (const(padded // WARP),), (clear, loop)))
        return head, self._result(op.result, Load(votes, (self.lin // WARP,)), op)

    def _result(self, result: Var | None, value: Expr, op: Op) -> list[Op]:
        return [] if result is None else [Let(result, cast(value, result.dtype), loc=op.loc)]

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
        inside = binary(
            "and",
            binary("and", compare(">=", target, base), compare("<", target, base + width)),
            compare("<", other, self.count),
        )
        return select(inside, other, me)

    # ── values that outlive a group ──────────────────────────────────────────────────────────

    def _groups(self, items: list[_Item]) -> list[_Group]:
        found = []
        for item in items:
            if isinstance(item, _Group):
                found.append(item)
            elif isinstance(item, tuple):
                found += [each for inner in item[1].values() for each in self._groups(inner)]
        return found

    def _place_values(self, items: list[_Item]) -> None:
        groups = self._groups(items)
        used: dict[str, set[int]] = {}
        allocated: dict[str, int] = {}
        buffers: dict[str, Buffer] = {}
        defined: dict[Var, int] = {}
        reads: dict[Var, set[int]] = {}
        for number, group in enumerate(groups):
            for op in walk_ops(tuple(group.ops)):
                for buffer in _buffers(op):
                    if buffer.name in self.buffers:
                        used.setdefault(buffer.name, set()).add(number)
                        buffers[buffer.name] = buffer
                if isinstance(op, Alloc) and op.buffer.name in self.buffers:
                    allocated[op.buffer.name] = number
                for var in {v for e in expressions(op) for v in variables(e)} & self.vars:
                    reads.setdefault(var, set()).add(number)
                for var in bound(op):
                    defined[var] = number
        self.expanded: dict[str, Buffer] = {}
        for name, where in used.items():
            buffer = buffers[name]
            if where != {allocated.get(name)} and buffer.space is Space.LOCAL:
                self.expanded[name] = self._tile(name, buffer.dtype, buffer.static_shape)
        for var, home in defined.items():
            if reads.get(var, set()) - {home}:
                self.stored[var] = self._tile(var.name, var.dtype)
        self.home = defined
        self.number = {id(group): number for number, group in enumerate(groups)}

    # ── output ───────────────────────────────────────────────────────────────────────────────

    def emit(self, items: list[_Item]) -> Body:
        out: list[Op] = []
        for item in items:
            if isinstance(item, _Group):
                out += self._map(item)
            elif isinstance(item, tuple):
                op, inner = item
                out.append(rebuild(op, **{name: self.emit(part) for name, part in inner.items()}))
            else:
                out.append(item)
        return tuple(out)

    def _map(self, group: _Group) -> list[Op]:
        number = self.number[id(group)]
        inside = self._keep(
            op
            for op in group.ops
            if not (isinstance(op, Alloc) and op.buffer.name in self.expanded and op.init is None)
        )
        if not inside:
            return []
        if group.mask is not TRUE:
            inside = (If(group.mask, inside),)
        read = {v for op in walk_ops(inside) for e in expressions(op) for v in variables(e)}
        wanted = {v for v in read & self.stored.keys() if self.home[v] != number}
        locals_ = self._renamed(sorted(wanted, key=lambda v: v.name))
        lead = [Let(own, Load(self.stored[v], (self.lin,))) for v, own in locals_.items()]
        inside = (*lead, *substitute_vars(inside, dict(locals_)))
        inside = _expand_locals(inside, self.expanded, self.lin)
        vars_ = self._renamed(self.kernel.thread_vars)
        inside = substitute_vars(inside, dict(vars_))
        extents = tuple(const(n) for n in reversed(self.kernel.threads))
        return [Map((*reversed(vars_.values()),), extents, inside, loc=group.ops[0].loc)]

    def _renamed(self, old: Iterable[Var]) -> dict[Var, Var]:
        return {v: fresh_var(v.name, self.names, v.dtype) for v in old}

    def _keep(self, body: Iterable[Op]) -> Body:
        """Values other groups need are stored where they are made."""
        out: list[Op] = []
        for op in body:
            out.append(rebuild(op, **_inner(op, self._keep)))
            kept = [var for var in bound(op) if var in self.stored]
            out += [Store(self.stored[var], (self.lin,), var, loc=op.loc) for var in kept]
        return tuple(out)


_SYMBOLS = {"sum": "+", "max": "max", "min": "min", "and": "&", "or": "|"}


def _neutral(kind: str, dtype: DType) -> Expr:
    if dtype.is_bool:
        return const(kind == "and", BOOL)
    low, high = dtype.min_value, dtype.max_value
    if dtype.is_float:
        low, high = float("-inf"), float("inf")
    values = {"max": low, "min": high, "and": -1 if dtype.kind == "int" else high}
    return const(values.get(kind, 0), dtype)


def _check_group(op: Op) -> None:
    """No thread may leave, on its own, a loop that all threads run together; nor see its own
    memory under two names."""
    if isinstance(op, View):
        raise CompileError(
            f"{op.buffer.name} is a view of {op.source.name}, which every thread has its own of",
            loc=op.loc,
            fix="index the buffer itself",
        )
    if isinstance(op, (Break, Continue)):
        raise CompileError(
            "a thread leaves, on its own, a loop in which the block does something together",
            got="a barrier, a tile operation, or a store that does not depend on the thread",
            loc=op.loc,
            fix="break on a condition that all threads of the block share",
        )
    if not isinstance(op, (For, While)):
        for body in bodies(op):
            for inner in body:
                _check_group(inner)


def _leaves(body: Body) -> list[Op]:
    """The `Break`s and `Continue`s of the loop around `body`."""
    found: list[Op] = []
    for op in body:
        if isinstance(op, (Break, Continue)):
            found.append(op)
        elif not isinstance(op, (For, While)):
            found += [leave for inner in bodies(op) for leave in _leaves(inner)]
    return found


def _loops(op: Map) -> Op:
    """A map that each thread runs on its own."""
    body: Body = op.body
    for var, extent in zip(reversed(op.vars), reversed(op.extents), strict=True):
        body = (For(var, const(0, var.dtype), extent, body, loc=op.loc),)
    return body[0]


def _buffers(op: Op) -> tuple[Buffer, ...]:
    return (*named_buffers(op), *written_buffers(op))


def _inner(op: Op, fn: Callable[[Body], Any]) -> dict[str, Any]:
    """By the name of each of the op's bodies, what `fn` makes of it."""
    return {f.name: fn(getattr(op, f.name)) for f in marked(op, "body")}


def _expand_locals(body: Body, expanded: dict[str, Buffer], lin: Expr) -> Body:
    """Accesses of a thread's buffer become accesses of its share of the expanded one."""
    if not expanded:
        return body

    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer.name in expanded:
            return Load(expanded[e.buffer.name], (*e.indices, lin), e.loc)
        return None

    def share(region: Region) -> Region:
        big = expanded[region.buffer.name]
        return Region(big, (*region.starts, lin), (*region.extents, const(1)))

    def rewrite(op: Op) -> Op:
        op = map_operands(op, lambda e: transform(e, node))
        match op:
            case Store() if op.buffer.name in expanded:
                return replace(op, buffer=expanded[op.buffer.name], indices=(*op.indices, lin))
            case Alloc() if op.buffer.name in expanded:
                assert op.init is not None  # those without one are gone
                return Store(expanded[op.buffer.name], (lin,), op.init, loc=op.loc)
            case Atomic() if op.dst.buffer.name in expanded:
                return replace(op, dst=share(op.dst))
            case Intrinsic():
                args = tuple(
                    share(a) if isinstance(a, Region) and a.buffer.name in expanded else a
                    for a in op.args
                )
                return replace(op, args=args)
        return op

    return map_body(body, rewrite)
