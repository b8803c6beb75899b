"""Bugs to plant in passes and emitters, one at a time; `tests/fuzz/plant.py` does.

Each is what somebody could plausibly have written there: a guard dropped, a stride or a mode
mistaken, a wait too short, a tail left out. All of them change results, or what a sanitizer sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bug:
    """`old`, found once in `file`, becomes `new`; `target` is who would show it."""

    name: str
    file: str
    old: str
    new: str
    target: str = "cpu"

    def apply(self, root: Path) -> None:
        path = root / "tilewright" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} places for it")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


BUGS = (
    # passes and analysis
    Bug("copies from the wrong corner", "passes/expand_copies.py",
        "else start + next(left)", "else next(left)"),
    Bug("a nest fused with one that reads its neighbours", "passes/fuse_maps.py",
        "if touched and len(places | touched) != 1:", "if touched and len(places | touched) > 2:"),
    Bug("a loop absorbed although its turns depend on each other", "passes/absorb_loops.py",
        "written.get(load.buffer.name, load.indices) == load.indices", "load.indices is not None"),
    Bug("a barrier that splits nothing", "passes/split_at_barriers.py",
        "                self._check_sync(op, mask)\n                flush()\n",
        "                self._check_sync(op, mask)\n"),
    Bug("shuffle up instead of down", "passes/split_at_barriers.py",
        '"down": lane + by,', '"down": lane - by,'),
    Bug("loops of one turn dropped", "passes/simplify_indices.py",
        'case For() if prove(compare(">=", op.start, op.stop), ranges):',
        'case For() if prove(compare(">=", op.start + 1, op.stop), ranges):'),
    Bug("the other branch taken", "passes/simplify_indices.py",
        "case If() if op.cond is FALSE:\n            return op.orelse",
        "case If() if op.cond is FALSE:\n            return ()"),
    Bug("min and max exchanged where one side is known", "ir/simplify_rules.py",
        'return x if e.op == "min" else y', 'return y if e.op == "min" else x'),
    Bug("a <= b read as a < b", "ir/simplify_rules.py",
        'diff, op = diff.plus(-1), "<" if op == "<=" else ">="',
        'diff, op = diff, "<" if op == "<=" else ">="'),
    Bug("a remainder dropped off by a period", "ir/simplify_rules.py",
        "return s.rebuild(left.plus(-(v.lo // c) * c), dtype)", "return s.rebuild(left, dtype)"),
    Bug("loop ranges one too short", "ir/bounds.py",
        "self.value(stop, True).hi - 1, mod", "self.value(stop, True).hi - 2, mod"),
    # the CPU emitter
    Bug("a dropped guard at the lower end", "targets/cpu/emit_nest.py",
        'if low != "0":', 'if low == "":'),
    Bug("a dropped guard at the upper end", "targets/cpu/emit_nest.py",
        "new += [_Bound(False, at, -1, 0, size)] * (not high)",
        "new += [_Bound(False, at, -1, 0, size)] * 0"),
    Bug("a panel with the wrong stride", "targets/cpu/gemm.py",
        "down, across = (columns, 1)", "down, across = (max(columns, 1) + columns % 2, 1)"),
    Bug("the last value of k forgotten", "targets/cpu/gemm.py",
        "if self.k - whole:", "if self.k - whole > 1:"),
    Bug("transposes exchanged", "targets/cpu/gemm.py",
        "b = b.transposed if op.transpose_b else b",
        "b = b.transposed if op.transpose_b and b.shape[0] != b.shape[1] else b"),
    Bug("clear=False forgotten", "targets/cpu/emit_tile.py",
        "if not op.clear:\n                old", "if False:\n                old"),
    Bug("maximum that starts from 0", "targets/cpu/emit_tile.py",
        'return wide, same, lambda a, b: self.keep_nan("max", a, b), low',
        'return wide, same, lambda a, b: self.keep_nan("max", a, b), 0'),
    Bug("a tail of columns left out of a scan", "targets/cpu/gemm.py",
        'with self.fn.loop(str(whole), str(size), hint="column")',
        'with self.fn.loop(str(whole), str(size - 1), hint="column")'),
    Bug("atomic minimum as maximum", "targets/cpu/emit_tile.py",
        '"min": f"{signed}min"', '"min": f"{signed}max"'),
    Bug("signed integers widened as unsigned", "targets/cpu/numbers.py",
        'a = self.convert("sext" if a.dtype.kind == "int" else "zext", a, dtype)',
        'a = self.convert("zext", a, dtype)'),
    Bug("no saturation at the lower end", "targets/cpu/numbers.py",
        'if sign == "s":\n                found', 'if sign == "":\n                found'),
    Bug("bfloat16 truncated", "targets/cpu/numbers.py",
        "self._round_bits(bits, 16)", 'self._shift("lshr", bits, 16)'),
    Bug("floor division that truncates", "targets/cpu/numbers.py",
        "found = self.choose_lanes(move, lower, quotient)", "found = quotient"),
    Bug("grid axes in the wrong order", "targets/cpu/emit.py",
        'rest = fn.value(f"udiv i64 {rest}, {extent}")',
        'rest = fn.value(f"udiv i64 {rest}, {grid[-1]}")'),
    # the CUDA road, as thread code
    Bug("idle slots visited", "passes/nests.py",
        "if most > size:", "if most > 2 * size:", "threads"),
    Bug("atomics by every copy of an element", "passes/lower_maps.py",
        "atomic_element(low, op, nest.expr, nest.index, nest.first_copy())",
        "atomic_element(low, op, nest.expr, nest.index)", "threads"),
    Bug("iterations of several threads that read what one writes", "passes/lower_maps.py",
        "once = nest.first_copy() if runs_once(low, op) else TRUE", "once = TRUE", "threads"),
    Bug("idle registers folded", "passes/reduce_any.py",
        "return select(cond, folded, identity(op.op, kind)) if cond is not TRUE else folded",
        "return folded", "threads"),
    Bug("clear=False forgotten across warps", "passes/reduce_any.py",
        "if not op.clear:\n        old", "if False:\n        old", "threads"),
    Bug("scans from the wrong end", "passes/lower_scan.py",
        "const(last) - step if op.reverse else step", "step", "threads"),
    Bug("no barrier on the way through shared memory", "passes/lower_relayout.py",
        "    yield from low.join(op.loc)\n", "", "threads"),
    Bug("zeros outside a tensor forgotten", "passes/lower_moves.py",
        "value = select(moves.cond, value, const(0, held))", "pass", "threads"),
    Bug("hazards of the next iteration not seen", "passes/hazards.py",
        "if state == before:\n                state.join(inner)",
        "if True:\n                state.join(inner)", "threads"),
    Bug("boxes apart that touch", "passes/hazards.py",
        "if i + size <= j or j + extent <= i:", "if i + size <= j + 1 or j + extent <= i:",
        "threads"),
    Bug("no barriers at all", "passes/insert_syncs.py",
        "kernel = settle_stores(rebuild(kernel, body=unnumber(body)))\n",
        "return settle_stores(rebuild(kernel, body=unnumber(body)))\n", "threads"),
    Bug("one group too many left open", "passes/pipeline_loops.py",
        "pending = ring.stages - 1 - place.lag", "pending = ring.stages - place.lag",
        "threads-sm80"),
    Bug("a ring's phase that never turns", "passes/rings.py",
        "return (turn - behind if behind else turn) // self.stages % 2", "return turn * 0",
        "threads"),
    Bug("rings refilled behind the loop's end", "passes/pipeline_loops.py",
        'cond = compare("<", value, loop.stop)\n        known',
        'cond = compare("<=", value, loop.stop)\n        known', "threads"),
    Bug("shared buffers that overlap", "passes/place_shared.py",
        "offset += shared_bytes(op.buffer)", "offset += shared_bytes(op.buffer) * 3 // 4",
        "threads"),
    # where elements lie: layouts, conversions, addresses
    Bug("copies of an element that nobody writes", "passes/insert_conversions.py",
        "return bool(written[holder[inside], table[inside]].all())", "return True", "threads"),
    Bug("a reduction's old values left behind in another layout", "passes/insert_conversions.py",
        'yield from _through(c, op, "dst", want, keeps=not op.clear)',
        'yield from _through(c, op, "dst", want, keeps=False)', "threads"),
    Bug("a lane offers one register to all who ask", "passes/lower_relayout.py",
        "if np.array_equal(asked[source[taken]], register[taken]):", "if taken.any():", "threads"),
    Bug("swizzled offsets added", "passes/lower_moves.py",
        "inner = at ^ step if swizzle.bits else at + step", "inner = at + step", "threads"),
    Bug("the second vector of a group where the first one was", "passes/lower_vectors.py",
        "start = (*start[:-1], simplify(start[-1] + step, low.ranges))",
        "start = (*start[:-1], simplify(start[-1], low.ranges))", "threads"),
    Bug("vectors that do not ask whether they are in the tensor", "passes/lower_vectors.py",
        "    if inside is TRUE:\n        return moves", "    if moves:\n        return moves",
        "threads"),
    Bug("vectors that begin between their multiples", "passes/lower_moves.py",
        "and multiple_of(memory.starts[-1], low.ranges) % count == 0", "and count > 0",
        "threads"),
    Bug("a mask's constant with the wrong sign", "passes/nests.py",
        "build_sum(Linear(fixed, -form.const), e.a.dtype)",
        "build_sum(Linear(fixed, form.const), e.a.dtype)", "threads"),
    # matrices
    Bug("matrices loaded without their transposition", "passes/lower_matrices.py",
        'op.src.dtype.bits)\n    text = f"count={found.count} trans={int(found.trans)}"',
        'op.src.dtype.bits)\n    text = f"count={found.count} trans=0"', "threads"),
    Bug("columns and k exchanged in a descriptor", "passes/lower_gemm.py",
        "leading, stride = (next_mn, next_k) if span else (next_k, next_mn)",
        "leading, stride = (next_k, next_mn) if span else (next_mn, next_k)", "threads"),
    Bug("an accumulator cleared at every step of k", "passes/lower_gemm.py",
        "keep if k0 == 0 else const(1),", "keep,", "threads"),
    Bug("one product too many left in flight", "passes/matrix_groups.py",
        "pending = max(min(ages), 0)", "pending = max(min(ages) + 1, 0)", "threads"),
    # reductions and scans
    Bug("parts of a row told by all but the last rank", "passes/reduce_any.py",
        "loop = For(q, const(1), const(ranks), (step,)",
        "loop = For(q, const(1), const(max(ranks - 1, 1)), (step,)", "threads"),
    Bug("the second chain of partial sums forgotten", "passes/lower_reduce.py",
        "for i in range(1, chains):", "for i in range(1, chains - 1):", "threads"),
    Bug("lines of a scan behind the tile's end", "passes/lower_scan.py",
        "if lines % threads:", "if lines % threads and rounds == 1:", "threads"),
    # rings, engines, time
    Bug("a ring that expects the bytes of one of its tiles", "passes/rings.py",
        "return sum(b.bytes // self.stages for b in self.slots.values())",
        "return max(b.bytes // self.stages for b in self.slots.values())", "threads"),
    Bug("a late refill into the slot that is being read", "passes/pipeline_loops.py",
        "isinstance(ahead, int) and ahead % ring.stages == 0:",
        "isinstance(ahead, int) and ahead % ring.stages in (0, ring.stages - 1):", "threads"),
    Bug("single tiles of a loop waited for with one parity", "passes/single_copies.py",
        "wait = [Wait(barrier, turn % 2, loc=loc)", "wait = [Wait(barrier, turn % 1, loc=loc)",
        "threads"),
    Bug("staging overwritten while the engine still reads it", "passes/hazards.py",
        'watched = [("bulk", state.bulk), ("sync", state.pending)]',
        'watched = [("sync", state.pending)]', "threads"),
    Bug("boxes laid down by their last coordinate alone", "passes/lower_copies.py",
        "corners.append((at, sum(m(c) for m, c in zip(layouts, at, strict=True))))",
        "corners.append((at, layouts[-1](at[-1])))", "threads"),
    Bug("cp.async reads behind the tensor's end", "passes/lower_moves.py",
        "amount = select(source.cond, amount, const(0))", "pass", "threads-sm80"),
    Bug("two staging tiles of one name", "passes/stage_stores.py",
        "    names.add(made)\n", "", "threads"),
    # atomics, analysis
    Bug("atomics outside a tensor", "passes/lower_atomics.py",
        "within = low.within(dst.buffer, starts)", "within = TRUE", "threads"),
    Bug("sums as even as the more even of two", "ir/intervals.py",
        "return tight(a.lo + b.lo, a.hi + b.hi, gcd(a.mod, b.mod), a.rem + b.rem)",
        "return tight(a.lo + b.lo, a.hi + b.hi, max(a.mod, b.mod), a.rem + b.rem)", "threads"),
    Bug("conditions of a loop's last turn taken for granted", "ir/bounds.py",
        "self.value(stop, True).hi - 1, mod", "self.value(stop, True).hi - 2, mod", "threads"),
)  # fmt: skip
