"""LLVM IR as text: a module, functions, and the few shapes of control flow the emitter needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Size = int | str  # a constant, or an i64 value
_PLAIN = re.compile(r"[^A-Za-z0-9_]")


def plain(name: str) -> str:
    """`name` with nothing in it that LLVM would want quoted; different names stay different."""
    text = _PLAIN.sub(lambda found: f"${ord(found[0]):x}$", name)
    return f"${text}" if text[:1].isdigit() else text


def symbol(name: str) -> str:
    """A kernel's symbol: none that machine code calls by itself, such as memset."""
    return f"tw.{plain(name)}"


class Module:
    """Declarations, constants and functions, printed in the order they came."""

    def __init__(self, header: str) -> None:
        self.header = header
        self.declarations: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.imports: set[str] = set()

    def declare(self, name: str, result: str, *args: str) -> None:
        self.declarations[name] = f"declare {result} @{name}({', '.join(args)})"

    def text(self) -> str:
        parts = [
            "\n".join(f"; {line}" for line in self.header.splitlines()),
            "\n".join(self.globals.values()),
            "\n".join(self.declarations.values()),
            *self.functions.values(),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


class Function:
    """One function under construction. `value` appends an instruction and names its result."""

    def __init__(self, module: Module, signature: str, attributes: str = "") -> None:
        self.module = module
        self.signature = signature
        self.attributes = attributes
        self.lines: list[str] = []
        self.stack: list[str] = []
        self.count = 0
        self.ended = False
        self.note: str = ""
        self.loops: list[tuple[str, str]] = []  # labels that go on, and that leave

    def name(self, hint: str = "v") -> str:
        self.count += 1
        return f"%{plain(hint)}.{self.count}"

    def line(self, text: str) -> None:
        if self.note:
            self.lines.append("  ; " + "".join(c if c.isprintable() else "?" for c in self.note))
            self.note = ""
        self.lines.append("  " + text)

    def value(self, text: str, hint: str = "v") -> str:
        name = self.name(hint)
        self.line(f"{name} = {text}")
        return name

    def alloca(self, type_: str, hint: str = "slot", align: int = 0) -> str:
        """Stack memory, taken at the function's entry so that it is taken once."""
        name = self.name(hint)
        aligned = f", align {align}" if align else ""
        self.stack.append(f"  {name} = alloca {type_}{aligned}")
        return name

    def label(self, hint: str) -> str:
        self.count += 1
        return f"{plain(hint)}.{self.count}"

    def start(self, label: str) -> None:
        if not self.ended:
            self.line(f"br label %{label}")
        self.lines.append(f"{label}:")
        self.ended = False

    def jump(self, label: str) -> None:
        if not self.ended:
            self.line(f"br label %{label}")
        self.ended = True

    def branch(self, condition: str, then: str, orelse: str) -> None:
        self.line(f"br i1 {condition}, label %{then}, label %{orelse}")
        self.ended = True

    def call(self, result: str, name: str, *args: tuple[str, str]) -> str:
        """Call a declared function; args are (type, value) pairs."""
        text = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            self.line(text)
            return ""
        return self.value(text)

    def intrinsic(self, name: str, result: str, *args: tuple[str, str]) -> str:
        """Call an intrinsic, its name complete."""
        self.module.declare(name, result, *(t for t, _ in args))
        return self.call(result, name, *args)

    @contextmanager
    def loop(
        self, start: Size, stop: Size, step: Size = 1, hint: str = "i", *, saturates: bool = False
    ) -> Iterator[str]:
        """`for i in range(start, stop, step)` over i64, step > 0; yields i. `saturates`: the number
        after the last may be too large for i64."""
        before = self.label(f"{hint}.before")
        header, body = self.label(f"{hint}.loop"), self.label(f"{hint}.body")
        latch, after = self.label(f"{hint}.next"), self.label(f"{hint}.done")
        index, following = self.name(hint), self.name(hint)
        self.start(before)
        self.start(header)
        self.line(f"{index} = phi i64 [ {start}, %{before} ], [ {following}, %{latch} ]")
        self.branch(self.value(f"icmp slt i64 {index}, {stop}"), body, after)
        self.start(body)
        self.loops.append((latch, after))
        yield index
        self.loops.pop()
        self.start(latch)
        if saturates:
            self.module.declare("llvm.sadd.sat.i64", "i64", "i64", "i64")
            self.line(f"{following} = call i64 @llvm.sadd.sat.i64(i64 {index}, i64 {step})")
        else:
            self.line(f"{following} = add nsw i64 {index}, {step}")
        self.jump(header)
        self.start(after)

    @contextmanager
    def when(self, condition: str | None, hint: str = "if") -> Iterator[None]:
        """What is emitted inside runs only where `condition` (an i1) holds; None: always."""
        if condition is None:
            yield
            return
        then, after = self.label(f"{hint}.then"), self.label(f"{hint}.end")
        self.branch(condition, then, after)
        self.start(then)
        yield
        self.start(after)

    def choose(self, condition: str, then: Callable[[], None], orelse: Callable[[], None]) -> None:
        yes, no, after = self.label("if.then"), self.label("if.else"), self.label("if.end")
        self.branch(condition, yes, no)
        self.start(yes)
        then()
        self.jump(after)
        self.start(no)
        orelse()
        self.start(after)

    def finish(self, result: str = "void") -> None:
        """Return `result`, and add the function to its module."""
        self.line(f"ret {result}")
        name = self.signature.split("@", 1)[1].split("(", 1)[0]
        head = f"define {self.signature} {self.attributes} {{\ntw.entry:"
        self.module.functions[name] = "\n".join([head, *self.stack, *self.lines, "}"])
