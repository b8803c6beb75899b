"""Scheduled programs in text, and how to break them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tilewright.ir.op import (
    Arrive,
    Commit,
    Fence,
    Op,
    Program,
    Sync,
    Wait,
    WaitGroup,
    bodies,
    marked,
)

SYNC = (Arrive, Wait, Fence, Sync, Commit, WaitGroup)

# a ring of two slots, one producer, two consumers with half the rows each
GEMM = """
program gemm {
  param A: float16[64, 80] global
  param B: float16[80, 32] global
  param C: float16[64, 32] global
  kernel k grid bx in 1 threads tx in 384 {
    alloc As: float16[2, 64, 16] shared
    alloc Bs: float16[2, 16, 32] shared
    alloc Cs: float16[2, 32, 32] shared
    alloc full: barrier[2] barrier
    alloc empty: barrier[2] barrier
    barrier_init full count 1
    barrier_init empty count 2
    fence barrier_init
    sync block
    role producer warps 8 + 4 registers=24 {
      for ko in 0 .. 5 {
        let s = ko % 2
        wait empty[s] phase (ko // 2 + 1) % 2
        arrive full[s] bytes=3072
        copy A[0:+64, ko * 16:+16] -> As[s, :, :] barrier=full[s] atom=bulk_load
        copy B[ko * 16:+16, 0:+32] -> Bs[s, :, :] barrier=full[s] atom=bulk_load
      }
    }
    role consumer warps 0 + 8 instances=2 var=wg registers=240 {
      alloc acc: float32[32, 32] fragment
      for ko2 in 0 .. 5 {
        let t = ko2 % 2
        wait full[t] phase ko2 // 2 % 2
        fence wgmma
        gemm As[t, wg * 32:+32, :], Bs[t, :, :] -> acc clear=ko2 == 0 atom=wgmma
        commit wgmma
        wait_group wgmma pending 0
        arrive empty[t]
      }
      copy acc -> Cs[wg, :, :] atom=stmatrix
      fence proxy_async
      sync named id=wg + 1 threads=128
      copy Cs[wg, :, :] -> C[wg * 32:+32, :] atom=bulk_store
      commit bulk
      wait_group bulk pending 0 read=true
    }
  }
}
"""

# one slot behind: the previous stage is released while this one's product runs
SKEWED = GEMM.replace(
    """        wait_group wgmma pending 0
        arrive empty[t]
      }
""",
    """        if ko2 > 0 {
          wait_group wgmma pending 1
          arrive empty[1 - t]
        }
      }
      wait_group wgmma pending 0
""",
).replace("        fence wgmma\n        gemm", "        if ko2 == 0 { fence wgmma }\n        gemm")

# two buffers filled by cp.async, one for all threads, no roles
CP_ASYNC = """
program sm80 {
  param A: float32[16, 64] global
  param C: float32[16] global
  kernel k grid bx in 1 threads tx in 64 {
    alloc S: float32[2, 16, 8] shared
    alloc part: float32[16] fragment
    alloc f: float32[16, 8] fragment
    fill part = 0.0
    copy A[:, 0:+8] -> S[0, :, :] atom=cp_async
    commit cp_async
    for k in 0 .. 8 {
      if k < 7 { copy A[:, (k + 1) * 8:+8] -> S[(k + 1) % 2, :, :] atom=cp_async }
      commit cp_async
      wait_group cp_async pending 1
      sync block
      copy S[k % 2, :, :] -> f atom=threads
      reduce sum f -> part dim 1 clear=false
      sync block
    }
    copy part -> C atom=threads
  }
}
"""

# P goes through shared memory into a second product; an output tile is reused
CHAINED = """
program chained {
  param A: float16[3, 16, 16] global
  param C: float16[3, 16, 16] global
  kernel k grid bx in 1 threads tx in 128 {
    alloc P: float16[16, 16] shared
    alloc Q: float16[16, 16] shared
    alloc O: float16[16, 16] shared
    alloc s: float32[16, 16] fragment
    alloc o: float32[16, 16] fragment
    for t in 0 .. 3 {
      copy A[t, :, :] -> s atom=threads
      copy s -> P atom=stmatrix
      copy s -> Q atom=stmatrix
      fence proxy_async
      sync block
      fence wgmma
      gemm P, Q -> o clear=true atom=wgmma
      commit wgmma
      wait_group wgmma pending 0
      wait_group bulk pending 0 read=true
      sync block
      copy o -> O atom=stmatrix
      fence proxy_async
      sync block
      copy O -> C[t, :, :] atom=bulk_store
      commit bulk
    }
    wait_group bulk pending 0 read=true
  }
}
"""

# a pair of blocks: each loads half of B for both, arrivals cross, the producers drain
CLUSTER = """
program pair {
  param A: float16[64, 64] global
  param B: float16[64, 32] global
  param C: float32[64, 32] global
  kernel k grid bx in 2 threads tx in 160 cluster=(2,) rank=r {
    alloc As: float16[2, 32, 16] shared
    alloc Bs: float16[2, 16, 32] shared
    alloc full: barrier[2] barrier
    alloc empty: barrier[2] barrier
    barrier_init full count 1
    barrier_init empty count 2
    fence barrier_init
    sync cluster
    role producer warps 4 + 1 {
      for ko in 0 .. 4 {
        let s = ko % 2
        wait empty[s] phase (ko // 2 + 1) % 2
        arrive full[s] bytes=2048
        copy A[bx * 32:+32, ko * 16:+16] -> As[s, :, :] barrier=full[s] atom=bulk_load
        let h = r * 8
        copy B[ko * 16 + h:+8, :] -> Bs[s, h:+8, :] barrier=full[s] multicast=3 atom=bulk_load
      }
      for kd in 0 .. 2 { wait empty[kd] phase 1 }
    }
    role consumer warps 0 + 4 {
      alloc acc: float32[32, 32] fragment
      for ko2 in 0 .. 4 {
        let t = ko2 % 2
        wait full[t] phase ko2 // 2 % 2
        fence wgmma
        gemm As[t, :, :], Bs[t, :, :] -> acc clear=ko2 == 0 atom=wgmma
        commit wgmma
        wait_group wgmma pending 0
        arrive empty[t]@(0)
        arrive empty[t]@(1)
      }
      copy acc -> C[bx * 32:+32, :] atom=threads
    }
  }
}
"""

# two consumers take turns in one place of shared memory
PINGPONG = """
program turns {
  param C: float32[2, 3] global
  kernel k grid bx in 1 threads tx in 256 {
    alloc S: float32[4] shared
    role first warps 0 + 4 {
      for i in 0 .. 3 {
        map a in 4 { S[a] = float32(i) }
        sync named id=1 threads=256 arrive=true
        sync named id=2 threads=256
      }
    }
    role second warps 4 + 4 {
      for j in 0 .. 3 {
        sync named id=1 threads=256
        map b in 1 { C[1, j] = S[b] + 1.0 }
        sync named id=2 threads=256 arrive=true
      }
    }
  }
}
"""

# neighbours exchange a tile through each other's shared memory
DSMEM = """
program swap {
  param A: float32[4, 8] global
  param C: float32[4, 8] global
  kernel k grid bx in 4 threads tx in 32 cluster=(2,) rank=r {
    alloc S: float32[8] shared
    alloc f: float32[8] fragment
    copy A[bx, :] -> S atom=threads
    sync cluster
    copy S[:]@(1 - r) -> f atom=threads
    sync cluster
    copy f -> C[bx, :] atom=threads
  }
}
"""


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """The program with one synchronising op left out, each in turn."""
    (kernel,) = program.kernels
    ops = [op for op in _walk(kernel) if isinstance(op, SYNC)]
    for victim in ops:
        broken = dataclasses.replace(program, kernels=(_without(kernel, victim),))
        yield f"{type(victim).__name__} at line {victim.loc.line}", broken


def replace_op(program: Program, victim: Op, new: Op) -> Program:
    (kernel,) = program.kernels
    return dataclasses.replace(program, kernels=(_without(kernel, victim, (new,)),))


def _walk(op: Op) -> Iterator[Op]:
    yield op
    for body in bodies(op):
        for inner in body:
            yield from _walk(inner)


def _without(op: Op, victim: Op, new: tuple[Op, ...] = ()) -> Op:
    changed = {}
    for f in marked(op, "body"):
        inner: list[Op] = []
        for each in getattr(op, f.name):
            inner += new if each is victim else (_without(each, victim, new),)
        changed[f.name] = tuple(inner)
    return dataclasses.replace(op, **changed) if changed else op
