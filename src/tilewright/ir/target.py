"""What a kernel is compiled for, and what was chosen about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.atoms import Feature
from tilewright.ir.chips import CHIPS, CUDA, DEFAULT, Chip
from tilewright.ir.schedule import HOME, RECORDS, WORDS, Internal, Numerics, Schedule, word
from tilewright.support.errors import CompileError

# checks of the interpreter; bounded waits on CUDA
CHECKS = ("sanitize", "nan", "diagnostic")
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
    >>> Target.parse("interp -sanitize").sanitize
    True
    >>> Target.parse("cuda -roles -skew=off").schedule.skew
    False
    """

    kind: str
    arch: str = ""
    features: frozenset[Feature] = frozenset()
    sanitize: bool = False
    nan: bool = False
    diagnostic: bool = False
    schedule: Schedule = Schedule()
    numerics: Numerics = Numerics()
    internal: Internal = Internal()

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
        chosen: dict[str, Any] = {}
        for flag in flags:
            name, _, value = flag.lstrip("-").partition("=")
            if name == "arch":
                arch = value
            elif name in CHECKS and not value:
                chosen[name] = True
            elif (value or "on") in WORDS.get(name, ()):
                chosen[name] = value or "on"
            else:
                public = (n for n, home in HOME.items() if home != "internal")
                listed = [f"-{n}={'|'.join(WORDS[n])}" for n in public]
                raise CompileError(
                    f"unknown option {flag!r} of target {text!r}",
                    expected=", ".join(["one of -arch=…", *(f"-{c}" for c in CHECKS), *listed]),
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
        return Target(kind, arch, known[arch]).choosing(**chosen)

    @property
    def chip(self) -> Chip:
        """What the hardware has: switching features off (`without`) changes nothing about it."""
        found = CHIPS.get(self.arch)
        if found is None:
            raise CompileError(f"{self} has no multiprocessors")
        return found

    def choosing(self, **chosen: Any) -> Target:
        """The same target with these checks, and fields of its schedule and numerics.

        >>> str(Target.parse("cpu").choosing(deterministic=True))
        'cpu -deterministic=on'
        """
        changed: dict[str, Any] = {n: bool(chosen.pop(n)) for n in CHECKS if n in chosen}
        for home in dict.fromkeys(HOME[name] for name in chosen):
            own = {name: value for name, value in chosen.items() if HOME[name] == home}
            changed[home] = replace(getattr(self, home), **own)
        return replace(self, **changed)

    def told(self) -> dict[str, Any]:
        """The fields that are not left to the compiler."""
        return {n: v for home in RECORDS for n, v in getattr(self, home).told().items()}

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
        flags = [f"arch={self.arch}"] if self.arch else []
        checks = [name for name in CHECKS if getattr(self, name)]
        choices = [f"{name}={word(value)}" for name, value in self.told().items()]
        return " -".join([self.kind, *flags, *sorted([*checks, *choices])])
