"""What a kernel is compiled for: a name, an architecture, features and options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.ir.atoms import Feature
from tilewright.support.errors import CompileError

_SM80 = frozenset({Feature.MMA, Feature.LDMATRIX, Feature.CP_ASYNC})
_SM90A = _SM80 | {Feature.BULK_COPY, Feature.WGMMA, Feature.CLUSTER, Feature.REGISTER_MOVE}
# what a target may be asked for besides: checks of the interpreter, bounded waits on CUDA
OPTIONS = ("sanitize", "nan", "diagnostic")
ON_OFF = ("on", "off")
# What the compiler chooses in a schedule unless told, and what it may be told; `-roles` is short
# for `-roles=on`.
CHOICES: dict[str, tuple[str, ...]] = {
    "roles": ON_OFF,  # a producer warpgroup of its own
    "skew": ON_OFF,  # statements of several iterations side by side
    "turns": ON_OFF,  # warpgroups use the tensor core one after the other
    "consumers": ("cooperative", "pingpong"),  # warpgroups share a tile, or have one each
    "boxes": ON_OFF,  # tiles of products are loaded and used in boxes along K
    "hoist": ON_OFF,  # guards of elements are asked once an iteration where that tells enough
    "persistent": ON_OFF,  # blocks that stay, and walk over the grid's tiles
    "order": ("plain", "grouped", "hilbert", "longest"),  # of the grid's tiles
    "cluster": ("1", "2", "4"),  # blocks that share what they load
    "waits": ("late", "iteration", "each"),  # for products by warpgroups, at the latest
    "fast_math": ON_OFF,  # approximate functions and division
    "bulk": ON_OFF,  # copies by the bulk engine
    "rows": ("any",),  # no second form for sizes that put the rows of tensors on 16 bytes
    "turning": ON_OFF,  # tiles that threads fill for products have several slots
    "gathers": ON_OFF,  # nests that move rows from anywhere do so ahead, past the registers
    "depth": ("most", "text", "least"),  # of rings: more slots than the text says, as many, or few
    "inline": ON_OFF,  # rows of numbers are loaded by the nests that need them
    "pieces": ON_OFF,  # products that leave too few registers are made in pieces
    "stage": ON_OFF,  # accumulators reach memory by way of shared memory
}
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
    multiprocessors: int  # of the largest chip of its kind that is sold
    registers: int = 65536  # of a block, and of a multiprocessor
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    reserved: int = 1024  # bytes of shared memory that every block takes besides


CHIPS = {
    "sm_80": Chip(shared=166_912, shared_per_sm=167_936, multiprocessors=108),
    "sm_90a": Chip(shared=232_448, shared_per_sm=233_472, multiprocessors=132),
}


@dataclass(frozen=True)
class Target:
    """A compilation target.

    >>> Target.parse("cuda -arch=sm_80").arch
    'sm_80'
    >>> Target.parse("interp -sanitize").options
    frozenset({'sanitize'})
    >>> Target.parse("cuda -roles -skew=off").choice("skew")
    'off'

    `options` holds flags, and choices as `name=value`.
    """

    kind: str
    arch: str = ""
    options: frozenset[str] = frozenset()
    features: frozenset[Feature] = field(default=frozenset())

    @staticmethod
    def parse(text: str | Target) -> Target:
        if isinstance(text, Target):
            return text
        if not isinstance(text, str) or not text.split():
            raise CompileError(
                "a target is named by a string",
                got=repr(text),
                fix='write target="auto", "cpu", "cuda" or "interp"',
                code="target",
            )
        kind, *flags = text.split()
        if kind not in ARCHITECTURES:
            raise CompileError(
                f"unknown target {text!r}",
                expected="'auto', 'cpu', 'interp', 'interp -sanitize', 'cuda', "
                "'cuda -arch=sm_80' or 'cuda -arch=sm_90a'",
                fix='leave it out, or write target="auto"',
                code="target",
            )
        known = ARCHITECTURES[kind]
        arch = list(known)[-1]
        options = set()
        for flag in flags:
            name, _, value = flag.lstrip("-").partition("=")
            if name == "arch":
                arch = value
            elif name in OPTIONS and not value:
                options.add(name)
            elif (value or "on") in CHOICES.get(name, ()):
                options.add(f"{name}={value or 'on'}")
            else:
                known_flags = [f"-{o}" for o in OPTIONS]
                known_flags += [f"-{name}={'|'.join(values)}" for name, values in CHOICES.items()]
                raise CompileError(
                    f"unknown option {flag!r} of target {text!r}",
                    expected="one of -arch=…, " + ", ".join(known_flags),
                    fix="leave it out",
                    code="target",
                )
        if arch not in known:
            raise CompileError(
                f"unknown architecture {arch!r} for {kind}",
                expected="one of " + ", ".join(known),
                fix="leave -arch out to compile for the newest",
                code="target",
            )
        return Target(kind, arch, frozenset(options), known[arch])

    @property
    def chip(self) -> Chip:
        """What the hardware has: switching features off (`without`) changes nothing about it."""
        found = CHIPS.get(self.arch)
        if found is None:
            raise CompileError(f"{self} has no multiprocessors")
        return found

    def choice(self, name: str) -> str:
        """What the schedule was told about `name`, one of `CHOICES`; `auto` where nothing was."""
        values = CHOICES[name]
        return next((v for v in values if f"{name}={v}" in self.options), "auto")

    def choosing(self, name: str, value: str) -> Target:
        """The same target with one choice made."""
        if value not in CHOICES[name]:
            raise CompileError(
                f"{value!r} is no choice for {name!r}", expected=" or ".join(CHOICES[name])
            )
        others = {o for o in self.options if o.partition("=")[0] != name}
        return replace(self, options=frozenset(others | {f"{name}={value}"}))

    def without(self, *features: Feature) -> Target:
        """The same target with some features switched off."""
        return replace(self, features=self.features - set(features))

    def __str__(self) -> str:
        arch = f" -arch={self.arch}" if self.arch else ""
        return self.kind + arch + "".join(f" -{o}" for o in sorted(self.options))
