"""What a kernel is compiled for: a name, an architecture, features and options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.ir.atoms import Feature
from tilewright.support.errors import CompileError

_SM80 = frozenset({Feature.MMA, Feature.LDMATRIX, Feature.CP_ASYNC})
_SM90A = _SM80 | {Feature.BULK_COPY, Feature.WGMMA, Feature.CLUSTER, Feature.REGISTER_MOVE}
# what a target may be asked for besides: checks of the interpreter, and on CUDA bounded waits and
# producer warps
OPTIONS = ("sanitize", "nan", "diagnostic", "roles")
ARCHITECTURES: dict[str, dict[str, frozenset[Feature]]] = {
    "interp": {"": frozenset(Feature)},
    "cpu": {"": frozenset({Feature.VECTORS})},
    "cuda": {"sm_80": _SM80, "sm_90a": _SM90A},
}


@dataclass(frozen=True)
class Chip:
    """What a block may take of a multiprocessor, and what its blocks share; bytes of shared memory
    count static and dynamic ones together."""

    shared: int  # of a block
    shared_per_sm: int
    registers: int = 65536  # of a block, and of a multiprocessor
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    reserved: int = 1024  # bytes of shared memory that every block takes besides


CHIPS = {
    "sm_80": Chip(shared=166_912, shared_per_sm=167_936),
    "sm_90a": Chip(shared=232_448, shared_per_sm=233_472),
}


@dataclass(frozen=True)
class Target:
    """A compilation target.

    >>> Target.parse("cuda -arch=sm_80").arch
    'sm_80'
    >>> Target.parse("interp -sanitize").options
    frozenset({'sanitize'})
    """

    kind: str
    arch: str = ""
    options: frozenset[str] = frozenset()
    features: frozenset[Feature] = field(default=frozenset())

    @staticmethod
    def parse(text: str | Target) -> Target:
        if isinstance(text, Target):
            return text
        kind, *flags = text.split()
        if kind not in ARCHITECTURES:
            raise CompileError(
                f"unknown target {text!r}",
                expected="'auto', 'cpu', 'interp', 'interp -sanitize', 'cuda', "
                "'cuda -arch=sm_80' or 'cuda -arch=sm_90a'",
                fix='leave it out, or write target="auto"',
            )
        known = ARCHITECTURES[kind]
        arch = list(known)[-1]
        options = set()
        for flag in flags:
            name, _, value = flag.lstrip("-").partition("=")
            if name == "arch":
                arch = value
            elif name in OPTIONS:
                options.add(name)
            else:
                raise CompileError(
                    f"unknown option {flag!r} of target {text!r}",
                    expected="one of -arch=…, " + ", ".join(f"-{o}" for o in OPTIONS),
                    fix="leave it out",
                )
        if arch not in known:
            raise CompileError(
                f"unknown architecture {arch!r} for {kind}", expected="one of " + ", ".join(known)
            )
        return Target(kind, arch, frozenset(options), known[arch])

    @property
    def chip(self) -> Chip:
        """What the hardware has: switching features off (`without`) changes nothing about it."""
        found = CHIPS.get(self.arch)
        if found is None:
            raise CompileError(f"{self} has no multiprocessors")
        return found

    def without(self, *features: Feature) -> Target:
        """The same target with some features switched off."""
        return replace(self, features=self.features - set(features))

    def __str__(self) -> str:
        arch = f" -arch={self.arch}" if self.arch else ""
        return self.kind + arch + "".join(f" -{o}" for o in sorted(self.options))
