"""What a kernel is compiled for: a name, an architecture, features and options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.ir.atoms import Feature
from tilewright.ir.chips import CHIPS, CUDA, DEFAULT, Chip
from tilewright.support.errors import CompileError

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
    # of rings: more slots than the text says, as many, few, or fewer than it says where those fit
    "depth": ("most", "text", "least", "fewest"),
    "inline": ON_OFF,  # rows of numbers are loaded by the nests that need them
    "pieces": ON_OFF,  # products that leave too few registers are made in pieces
    "stage": ON_OFF,  # accumulators reach memory by way of shared memory
}
ARCHITECTURES: dict[str, dict[str, frozenset[Feature]]] = {
    "interp": {"": frozenset(Feature)},
    "cpu": {"": frozenset({Feature.VECTORS})},
    "cuda": CUDA,
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
                "'cuda -arch=sm_89' …",
                fix='leave it out, or write target="auto"',
                code="target",
            )
        known = ARCHITECTURES[kind]
        arch = DEFAULT if DEFAULT in known else ""
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
                expected="one of " + ", ".join(known) if DEFAULT in known else "none",
                fix="leave -arch out, or write compute_… for PTX that later chips run"
                if DEFAULT in known
                else "leave -arch out",
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

    def like(self, arch: str) -> Target:
        """The same target with the features of another architecture alone, as far as it has them.

        >>> older = Target.parse("cuda").like("sm_80")
        >>> older.arch, older.features == Target.parse("cuda -arch=sm_80").features
        ('sm_90a', True)
        """
        return replace(self, features=self.features & ARCHITECTURES[self.kind][arch])

    def __str__(self) -> str:
        arch = f" -arch={self.arch}" if self.arch else ""
        return self.kind + arch + "".join(f" -{o}" for o in sorted(self.options))
