"""What registers hold: tiles that live in another space than their text says, and whether what is
left fits.

**Fragments of which control asks for single elements** (`spill_fragments`). An element of a
fragment is in the registers of some threads; a guard, a loop or the place of a copy needs it in all
of them. What a copy has brought from a tensor that nobody writes is asked for there, and any other
fragment that maps and copies fill is a shared tile instead:

    copy Mask[b, :] -> used;  for k { if used[k] { … } }

    for k { if Mask[b, k] { … } }

A small one that other ops need in registers, such as a sum, is copied to shared memory where it is
asked for.

**Fragments of more registers than a thread has** (`move_large_fragments`). Where copies, fills and
maps alone use such a one and the block has room, it is a shared tile; else the assembler keeps what
does not fit in local memory (`fit_registers` says so). Both are slow, and a warning names it.

**Tiles that threads write only for a product's left side** (`keep_operands`) are fragments.

    copy s -> p (shared);  acc += p · v          map (i, j) { p[i, j] = f(s[i, j]) };  acc += p · v

A matrix instruction of a warpgroup takes its left operand from the registers of the same threads
that hold the result of another: what they compute of one for the next need not go through shared
memory, where they would have to meet. So it is where such a tile is written from results of
products, an element from the same element, and nobody but products reads it, whole and from the
left. Every warpgroup must have rows of its own, and threads registers to spare: three quarters of
theirs hold all fragments.

**Fragments that are better shared** (`share_fragments`). Where warpgroups have no rows of their
own, each would compute a whole left operand; from shared memory they read what all have computed
together. A vector that a pipelined loop copies from a tensor, and that maps read by columns, takes
registers of every thread for its columns; to shared memory the bulk engine brings it ahead.

**What fragments take where most live at once** (`fit_registers`), against what there is. Of a
block's registers every thread is born with as many; a producer hands most of its own over to the
consumers. What does not fit goes to local memory, with a warning. Fragments that need more than
eight times what a thread has, however they are spread, are refused: they are a mistake, and take
minutes to compile. Accumulators of products by warpgroups cannot go there at all: where they do not
fit, single warps make the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.ir.analysis.lifetimes import fragment_words, lifetimes
from tilewright.passes.core import *
from tilewright.passes.layout.shared_tiles import bulk_eligible
from tilewright.passes.overlap.roles import MOST as MOST_GIVEN
from tilewright.passes.overlap.roles import UNIT, placed
from tilewright.passes.overlap.skew import registers, registers_of

MOST = 255  # registers of a thread
SMALL = 4096  # bytes of a fragment that is copied for single elements of it
ROWS = 64  # of a matrix instruction
SPILLED = 8  # a fragment in local memory is slow; a much larger one is a mistake


def _in_space(kernel: Kernel, space: Space, *buffers: Buffer) -> Kernel:
    return replace_buffers(kernel, {buffer: replace(buffer, space=space) for buffer in buffers})


# ── fragments that control asks for ──────────────────────────────────────────────────────────


def spill_fragments(kernel: Kernel, target: Target) -> Kernel:
    """Where control flow reads elements of a fragment (`if used[k]`), let it read the tensor that
    they were copied from, or a shared copy."""
    viewed = aliases(kernel).viewed
    asked = {
        load.buffer.name: load.buffer
        for op in outside_maps(kernel.body)
        for load in op_loads(op)
        if load.buffer.is_fragment and load.buffer.name not in viewed
    }
    written = written_by(kernel)
    for buffer in asked.values():
        source = _source(kernel, buffer, written)
        if source is not None:
            kernel = _asked_there(kernel, buffer, source)
            continue
        movable = _movable(kernel, buffer)
        if movable or (buffer.bytes <= SMALL and not buffer.dtype.packed):
            because(kernel.name, buffer.name, "control flow reads its elements")
            kernel = _in_space(kernel, Space.SHARED, buffer) if movable else _shown(kernel, buffer)
    return kernel


def _outside_maps(body: Body, rule: Callable[[Op], Body]) -> Body:
    """`body` with `rule` applied to every op but maps; the last of what it gives has the bodies."""
    found: list[Op] = []
    for op in body:
        if isinstance(op, Map):
            found.append(op)
            continue
        with at(op.loc):
            *before, new = rule(op)
        found += [*before, map_bodies(new, lambda inner: _outside_maps(inner, rule))]
    return tuple(found)


def _reading(op: Op, buffer: Buffer, there: Callable[[Load], Load]) -> Op:
    """`op` with the elements of `buffer` read elsewhere."""
    return map_loads(op, lambda e: there(e) if e.buffer == buffer else None)


def _shown(kernel: Kernel, buffer: Buffer) -> Kernel:
    """`kernel` with a copy of the fragment in shared memory before every op that reads elements."""
    differs = per_thread(kernel)
    name = fresh_name(f"{buffer.name}.shown", defined_names(kernel))
    shared = Buffer(name, buffer.shape, buffer.dtype, Space.SHARED)

    def rule(op: Op) -> Body:
        new = _reading(op, buffer, lambda load: Load(shared, load.indices, load.loc))
        if new is op or isinstance(op, While) or id(op) in differs.controls:
            return (op,)
        return Copy(whole(buffer), whole(shared)), new

    body = _outside_maps(kernel.body, rule)
    return rebuild(kernel, body=(Alloc(shared), *body))


def _source(kernel: Kernel, buffer: Buffer, written: set[str]) -> Copy | None:
    """The copy that alone fills a fragment, before anything asks for it, with what stays the same
    in memory."""
    writers = [op for op in walk_ops(kernel) if buffer in written_buffers(op)]
    users = [op for op in kernel.body if buffer.name in mentioned(op)]
    op = users[0] if users else None
    if len(writers) != 1 or op is not writers[0] or not isinstance(op, Copy) or not op.dst.is_whole:
        return None
    if op.src.buffer.dtype != buffer.dtype:
        return None
    if len(long_dims(op.src.extents)) != len(long_dims(buffer.shape)):
        return None
    read = {op.src.buffer, *(load.buffer for start in op.src.starts for load in loads(start))}
    steady = all(b.is_global and b.name not in written for b in read)
    return op if steady else None


def _asked_there(kernel: Kernel, buffer: Buffer, copy: Copy) -> Kernel:
    """`kernel` with elements outside maps read where `copy` reads them; without the copy where
    nobody else needs it."""
    places = dict(zip(long_dims(copy.src.extents), long_dims(buffer.shape), strict=True))

    def there(load: Load) -> Load:
        starts = enumerate(copy.src.starts)
        indices = tuple(s + load.indices[places[d]] if d in places else s for d, s in starts)
        return Load(copy.src.buffer, indices, load.loc)

    new = _outside_maps(kernel.body, lambda op: (_reading(op, buffer, there),))

    def is_about(op: Op) -> bool:
        """What fills the tile, and says that it exists or how it should lie."""
        return op == copy or (isinstance(op, (Alloc, Hint)) and op.buffer == buffer)

    left = tuple(op for op in new if not is_about(op))
    used = any(buffer in named_buffers(op) for op in walk_ops(left))
    return rebuild(kernel, body=new if used else left)


def _movable(kernel: Kernel, buffer: Buffer) -> bool:
    """Whether all that use a fragment as a tile could use shared memory as well."""
    return not any(
        buffer in written_buffers(op)
        or any(r.buffer == buffer for r in regions(op, reads=True))
        or (isinstance(op, Hint) and op.buffer == buffer)
        for op in outside_maps(kernel.body)
        if not isinstance(op, (Alloc, Copy, Fill, Map))
    )


# ── large fragments ──────────────────────────────────────────────────────────────────────────


def move_large_fragments(kernel: Kernel, target: Target) -> Kernel:
    """Move fragments that need more registers than a thread has to shared memory where they fit,
    with a warning."""
    if any(walk_ops(kernel, Role)):
        return kernel
    most = min(MOST, target.chip.registers // kernel.thread_count)
    allocs = list(walk_ops(kernel, Alloc))
    shared = sum(op.buffer.bytes for op in allocs if op.buffer.is_shared)
    viewed = aliases(kernel).viewed
    for op in allocs:
        buffer, words = op.buffer, registers_of(op.buffer, kernel)
        if not buffer.is_fragment or words <= most or buffer.name in viewed:
            continue
        if shared + buffer.bytes > target.chip.shared or not _movable(kernel, buffer):
            continue
        shared += buffer.bytes
        takes = f"{words} registers per thread, of {most}"
        because(kernel.name, buffer.name, takes)
        costs(kernel.name, op.loc, f"{buffer.name} takes {takes}: it is kept in shared memory")
        kernel = _in_space(kernel, Space.SHARED, buffer)
    return kernel


# ── operands of products ─────────────────────────────────────────────────────────────────────


def keep_operands(kernel: Kernel, target: Target) -> Kernel:
    """Keep a left operand that threads compute from another GEMM's result in registers: no shared
    tile, no barrier."""
    threads = kernel.thread_count
    if Feature.WGMMA not in target.features or threads % WARPGROUP or placed(kernel):
        return kernel
    results = {op.c.buffer for op in walk_ops(kernel, Gemm) if op.c.is_whole}
    held: list[Buffer] = []
    room = min(target.chip.registers // threads, MOST_GIVEN) * 3 // 4 - registers(kernel)
    for tile in [op.buffer for op in walk_ops(kernel, Alloc)]:
        if not _could_be(tile, threads // WARPGROUP):
            continue
        users = _users(kernel, tile)
        products = [op for op in users if isinstance(op, Gemm)]
        writers = [op for op in users if not isinstance(op, Gemm)]
        if len(writers) != 1 or not products or registers_of(tile, kernel) > room:
            continue
        if all(_reads(op, tile) for op in products) and _writes(writers[0], tile, results):
            room -= registers_of(tile, kernel)
            held.append(tile)
            because(kernel.name, tile.name, "in registers: only gemms read it")
    return _in_space(kernel, Space.FRAGMENT, *held)


def _could_be(buffer: Buffer, groups: int) -> bool:
    return (
        buffer.is_shared
        and buffer.is_static
        and buffer.rank == 2
        and int(buffer.shape[0]) % (ROWS * groups) == 0
        and buffer.dtype.is_float
        and buffer.dtype.bits == 16  # of others, results and left operands lie differently
        and buffer.layout is None
    )


def _users(kernel: Kernel, buffer: Buffer) -> list[Op]:
    """The ops that have to do with a tile, maps as a whole, others that have bodies where they
    ask for its elements themselves."""
    return [
        op
        for op in outside_maps(kernel.body)
        if not isinstance(op, (Alloc, Hint))
        and (buffer.name in mentioned(op) if isinstance(op, Map) else buffer in named_buffers(op))
    ]


def _reads(op: Gemm, buffer: Buffer) -> bool:
    return _multiplies(op, buffer) and op.policy != "full_col"


def _multiplies(op: Gemm, buffer: Buffer) -> bool:
    """Whether a tile is the left factor, and nothing else."""
    return (
        op.a.buffer == buffer
        and op.a.is_whole
        and not op.transpose_a
        and buffer not in (op.b.buffer, op.c.buffer)
        and op.b.buffer.is_shared
        and op.atom is None
        and op.meta is None
    )


def _writes(op: Op, buffer: Buffer, results: set[Buffer]) -> bool:
    """Whether `op` computes all of a tile from results of products, element by element."""

    def is_result(other: Buffer) -> bool:
        return other in results and other.shape == buffer.shape and other.dtype.bits == 32

    match op:
        case Copy():
            filled = op.dst.buffer == buffer and op.dst.is_whole and op.src.is_whole
            return filled and is_result(op.src.buffer)
        case Map(body=(*names, Store(tile, place)), layout=None) if op.extents == buffer.shape:
            if tile != buffer or place != op.vars or not all(isinstance(x, Let) for x in names):
                return False
            read = [*loads_within(op.body)]
            return all(x.buffer.space in (Space.FRAGMENT, Space.LOCAL) for x in read) and any(
                is_result(x.buffer) and x.indices == op.vars for x in read
            )
    return False


# ── fragments that are better shared ─────────────────────────────────────────────────────────


def share_fragments(program: Program, target: Target) -> Program:
    """Keep left operands of GEMMs in shared memory where warpgroups have no rows of their own, and
    vectors that maps read by columns, which the bulk engine loads ahead."""
    if Feature.WGMMA not in target.features:
        return program

    def shared(kernel: Kernel) -> Kernel:
        if placed(kernel) or any(walk_ops(kernel, Role)):
            return kernel
        fixed = aliases(kernel).viewed | {
            op.buffer.name for op in walk_ops(kernel, Hint) if op.buffer is not None
        }
        found = [*_common_operands(kernel), *_columns(kernel, program)]
        return _in_space(kernel, Space.SHARED, *(b for b in found if b.name not in fixed))

    return map_kernels(program, shared)


def _common_operands(kernel: Kernel) -> Iterator[Buffer]:
    """Left operands of products whose rows warpgroups cannot share among them."""
    groups = kernel.thread_count // WARPGROUP
    for tile in {op.a.buffer: None for op in walk_ops(kernel, Gemm)}:
        if not tile.is_fragment or not tile.is_static or tile.rank != 2 or tile.layout is not None:
            continue
        rows, users = int(tile.shape[0]), _users(kernel, tile)
        if groups < 2 or rows % ROWS or rows % (ROWS * groups) == 0 or tile.dtype.bits > 16:
            continue
        products = [op for op in users if isinstance(op, Gemm)]
        makers = [op for op in users if not isinstance(op, Gemm)]
        made_once = len(makers) == 1 and isinstance(makers[0], (Map, Copy))
        if made_once and all(_multiplies(op, tile) for op in products):
            because(kernel.name, tile.name, "shared: no warpgroup owns whole rows")
            yield tile


def _columns(kernel: Kernel, program: Program) -> Iterator[Buffer]:
    """Vectors that loops copy from tensors, for maps that read them by columns."""
    written = written_by(kernel)
    for loop, ranges in scope.walk_ranges(kernel, program.dims):
        if not isinstance(loop, For) or loop.kind != "pipelined" or loop.order is not None:
            continue
        known = scope.inside(loop, "body", ranges)
        for op in loop.body:
            if not isinstance(op, Copy) or not op.dst.is_whole or op.src.buffer.name in written:
                continue
            tile = op.dst.buffer
            if not tile.is_fragment or tile.rank != 1 or tile.layout is not None:
                continue
            moved = rebuild(op, dst=whole(replace(tile, space=Space.SHARED)))
            users = [each for each in loop.body if tile.name in mentioned(each)]
            users = [each for each in users if each is not op and not isinstance(each, Alloc)]
            alone = len(users) + 1 == len(_users(kernel, tile))
            by_column = all(_reads_columns(each, tile) for each in users)
            if alone and users and by_column and bulk_eligible(moved, known):
                because(kernel.name, tile.name, "shared: maps read it by columns")
                yield tile


def _reads_columns(op: Op, tile: Buffer) -> bool:
    if not isinstance(op, Map) or len(op.vars) < 2 or touched(op).get(tile.name):
        return False
    return all(x.indices == op.vars[-1:] for x in loads_within(op) if x.buffer == tile)


# ── what fits ────────────────────────────────────────────────────────────────────────────────


class TooManyRegisters(CompileError):
    """Accumulators that no thread has registers for."""


def fit_registers(kernel: Kernel, target: Target) -> Kernel:
    """Refuse kernels whose live fragments exceed the registers of a thread, role by role."""
    sizes = fragment_words(kernel)
    sums = {op.c.buffer.name for op in walk_ops(kernel, Gemm) if op.atom == "wgmma"}
    allocs = {op.buffer.name: op for op in walk_ops(kernel, Alloc)}
    for role, body, threads, room in _parts(kernel, target):
        lives = lifetimes(body, (Space.FRAGMENT,))
        _, live = lives.peak(sizes)
        taken = sum(sizes[name] for name in live)
        if taken:
            because(kernel.name, "registers", f"fragments{role} take {taken} of {room}")
        _, held = lives.peak({name: sizes[name] for name in sizes.keys() & sums})
        if sum(sizes[name] for name in held) > room:
            names = _in_words(held, allocs, sizes)
            raise TooManyRegisters(f"accumulators take more than {room} registers: {names}")
        # as thinly as they can be spread: what was spread otherwise is slow, and no mistake
        least = {name: -(-allocs[name].buffer.bytes // (4 * threads)) for name in sizes}
        _, live = lives.peak(least)
        taken = sum(least[name] for name in live)
        if taken <= room:
            continue
        largest, names = max((least[n], n) for n in live)[1], _in_words(live, allocs, least)
        loc = allocs[largest].loc or kernel.loc
        takes = f"fragments take {taken} registers per thread{role}, of {room}"
        costs(kernel.name, loc, f"{takes}: the rest spills to local memory ({names})")
        if taken > SPILLED * room:
            raise CompileError(
                f"the fragments of {kernel.name} do not fit the registers of a thread",
                loc=loc,
                expected=f"at most {room} registers{role}",
                got=f"{taken} that live at once: {names}",
                fix="use smaller tiles, more threads, or for k in T.tile(K) in place of `:`",
                code="registers",
            )
    return kernel


def _parts(kernel: Kernel, target: Target) -> Iterator[tuple[str, Body, int, int]]:
    """Code, who runs it, how many threads together, and the registers that each of them has."""
    born = min(MOST, target.chip.registers // kernel.thread_count // UNIT * UNIT)
    roles = list(walk_ops(kernel, Role))
    for op in roles:
        threads = op.warps // op.instances * WARP
        yield f" in role {op.name}", op.body, threads, op.registers or born
    if not roles:
        yield "", kernel.body, kernel.thread_count, born


def _in_words(names: list[str], allocs: dict[str, Alloc], sizes: dict[str, int]) -> str:
    largest = sorted(names, key=lambda name: (-sizes[name], name))
    words = []
    for name in largest[:4]:
        buffer = allocs[name].buffer
        shape = "×".join(str(extent) for extent in buffer.static_shape)
        words.append(f"{name} {sizes[name]} ({shape} {buffer.dtype})")
    return ", ".join(words) + (f" and {len(largest) - 4} more" if len(largest) > 4 else "")
