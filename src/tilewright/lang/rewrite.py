"""A kernel's text → the same function with control flow and assignments turned into calls of
`Env`. Line and column numbers stay those of the user's file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn, TypeVar

from tilewright.lang.where import register, span_of
from tilewright.support.definitions import (
    FUTURE,
    Definition,
    arguments_of,
    changed,
    definition,
    with_code,
)
from tilewright.support.errors import CompileError, Loc

Node = TypeVar("Node", bound=ast.AST)
ENV = "_tw_env"
ENTER = "_tw_enter"
# Python's functions that have a meaning for run-time values
BUILTINS = (
    "max", "min", "any", "all", "int", "float", "bool", "divmod", "round", "tuple", "list", "range",
    "print", "isinstance",
)  # fmt: skip
# methods that change a Python container
CHANGES = ("append", "extend", "insert", "pop", "remove", "clear", "update", "add", "setdefault")
_SYMBOLS = (
    "Add +, Sub -, Mult *, Div /, FloorDiv //, Mod %, Pow **, BitAnd &, BitOr |, BitXor ^, "
    "LShift <<, RShift >>, MatMult @, Eq ==, NotEq !=, Lt <, LtE <=, Gt >, GtE >=, In in, "
    "NotIn not in, Is is, IsNot is not"
)
_OPS = dict(each.split(" ", 1) for each in _SYMBOLS.split(", "))
# nodes that have no place in a kernel, what they are, and what to write instead
_REFUSED_NODES = """
Try: `try`: nothing is raised on a device: check with an `if` instead
TryStar: `trystar`: use `if` and `elif`
Match: `match`: use `if` and `elif`
Global: `global`: leave it out: a kernel reads globals, and keeps its results in tensors
Nonlocal: `nonlocal`: leave it out: a kernel's results are in tensors
Delete: `del`: leave it out: names end with the kernel
ClassDef: a class: define it outside the kernel
AsyncFunctionDef: `async`: use a plain function
AsyncFor: `async for`: use `for`
AsyncWith: `async with`: use `with`
Yield: `yield`: leave it out: a kernel's results are in tensors
YieldFrom: `yield from`: leave it out: a kernel's results are in tensors
Await: `await`: call a plain function
"""
_REFUSED = {
    name: said for name, *said in (s.split(": ", 2) for s in _REFUSED_NODES.strip().splitlines())
}


def _symbol(op: ast.AST) -> str:
    return _OPS[type(op).__name__]


def find_definition(function: FunctionType) -> ast.FunctionDef:
    """The `def` of a function, with the line and column numbers of its file."""
    code = function.__code__
    if code.co_name == "<lambda>":
        raise CompileError(
            "a lambda cannot be a kernel",
            loc=_lambda_loc(code),
            fix="write a `def`",
            code="python",
        )
    node = definition(function).node
    if isinstance(node, ast.FunctionDef):
        return node
    raise CompileError(
        "`async` is not part of the kernel language",
        loc=location(node, code.co_filename),
        fix="write a plain `def`",
        code="python",
    )


def _lambda_loc(code: CodeType) -> Loc:
    """The first lambda of its line."""
    nodes = ast.walk(ast.parse("".join(linecache.getlines(code.co_filename)), code.co_filename))
    for node in nodes:
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            return location(node, code.co_filename)
    return Loc(code.co_filename, code.co_firstlineno)


def location(node: ast.AST, filename: str) -> Loc:
    line = getattr(node, "lineno", 1)
    same_line = getattr(node, "end_lineno", None) == line
    end = getattr(node, "end_col_offset", None) if same_line else None
    return span_of(filename, line, getattr(node, "col_offset", 0), end)


def assigned_names(body: list[ast.stmt]) -> list[str]:
    """Names that statements bind in this function, in order, nested functions left out."""
    found: dict[str, None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = None
            return
        if isinstance(
            node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        ):
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        for child in ast.iter_child_nodes(node):
            visit(child)

    for statement in body:
        visit(statement)
    return list(found)


# ── making nodes ──


def _locate(at: ast.AST, node: Node) -> Node:
    """`node` and its unplaced children at the place of `at`."""
    ast.copy_location(node, at)
    for child in ast.iter_child_nodes(node):
        if not hasattr(child, "lineno"):
            _locate(at, child)
    return node


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call(at: ast.AST, method: str, *args: Any, owner: str = ENV) -> ast.Call:
    """`owner.method(args)`; an argument that is no node is a constant."""
    nodes: list[Any] = [each if isinstance(each, ast.AST) else ast.Constant(each) for each in args]
    return _locate(at, ast.Call(ast.Attribute(_load(owner), method, ast.Load()), nodes, []))


def _do(at: ast.AST, method: str, *args: Any, owner: str = ENV) -> ast.stmt:
    return _locate(at, ast.Expr(_call(at, method, *args, owner=owner)))


def _bind(at: ast.AST, name: str, method: str, *args: Any) -> ast.stmt:
    """`name = env.method(args)`."""
    return _locate(at, ast.Assign([ast.Name(name, ast.Store())], _call(at, method, *args)))


def _said(at: ast.AST, name: str) -> ast.Call:
    return _call(at, "name", name)


def _thunk(value: ast.expr) -> ast.Lambda:
    return _locate(value, ast.Lambda(ast.arguments([], [], None, [], [], None, []), value))


def _forget(node: ast.AST, names: list[str]) -> list[ast.stmt]:
    """Names that a run-time scope bound are lost after it."""
    return [
        _locate(
            node, ast.If(_call(node, "lost", name), [_bind(node, name, "lost_value", name)], [])
        )
        for name in names
    ]


def _names(target: ast.expr | None) -> list[ast.Name]:
    return [n for n in ast.walk(target) if isinstance(n, ast.Name)] if target else []


def _drop(node: ast.AST, name: str) -> ast.stmt:
    """Ends a name, and so a tile value that nothing else names."""
    return _locate(node, ast.Delete([ast.Name(name, ast.Del())]))


def _storing(target: ast.expr) -> list[ast.stmt]:
    """Before `name[...] = …`."""
    if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
        return []
    name = target.value.id
    return [_do(target, "storing", name, _load(name))]


class Rewriter(ast.NodeTransformer):
    """Statements and expressions over run-time values become calls."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.temporaries = 0
        self.columns: dict[int, int] = {}

    def _temporary(self) -> str:
        self.temporaries += 1
        return f"_tw_{self.temporaries}"

    def _refuse(self, node: ast.AST, what: str, fix: str) -> NoReturn:
        raise CompileError(
            f"{what} is not part of the kernel language",
            loc=location(node, self.filename),
            fix=fix,
            code="python",
        )

    # ── statements ──

    def visit(self, node: ast.AST) -> Any:
        if type(node).__name__ in _REFUSED:
            self._refuse(node, *_REFUSED[type(node).__name__])
        if isinstance(node, ast.stmt):
            self.columns.setdefault(node.lineno, node.col_offset)
        return super().visit(node)

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            done += result if isinstance(result, list) else [result]
        return done

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        forget = _forget(node, assigned_names([*node.body, *node.orelse]))
        branch, test = self._temporary(), node.test
        start = _bind(test, branch, "branch", self._condition(test))
        then = [*self.body(node.body), _do(test, "close", owner=branch)]
        done = [start, _locate(node, ast.If(_call(test, "then", owner=branch), then, []))]
        if node.orelse:
            orelse = ast.If(_call(test, "orelse", owner=branch), self.body(node.orelse), [])
            done += [*forget, _locate(node, orelse)]
        return [*done, _do(test, "end", owner=branch), *forget]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        iterable, forget = node.iter, _forget(node, assigned_names([node]))
        ranged = isinstance(iterable, ast.Call) and getattr(iterable.func, "id", "") == "range"
        source = self.visit(iterable)
        if ranged:
            source.func.attr = "call_range"
        names = tuple(n.id for n in _names(node.target))
        node.iter = _call(iterable, "loop", source, names)
        node.body = [*self._targets(node.target), *self.body(node.body)]
        node.orelse = self._orelse(node)
        return [node, *forget]

    def _orelse(self, node: ast.For | ast.While) -> list[ast.stmt]:
        first = [_do(each, "check_else") for each in node.orelse[:1]]
        return [*first, *self.body(node.orelse)]

    def _targets(self, target: ast.expr | None) -> list[ast.stmt]:
        """The statements that make the names of a `for`/`with` target known."""
        for each in ast.walk(target) if target else ():
            if isinstance(each, (ast.Subscript, ast.Attribute)):
                self._refuse(each, "a loop target that is not a name", "bind a name")
        return [_bind(n, n.id, "target", n.id, _load(n.id)) for n in _names(target)]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test)):
            self._refuse(
                node.test,
                "`:=` in the condition of a while",
                "assign to an alloc_var before the loop and at its end",
            )
        forget = _forget(node, assigned_names(node.body))
        source = _call(node.test, "while_loop", _thunk(self._condition(node.test)))
        counter = ast.Name(self._temporary(), ast.Store())
        loop = ast.For(counter, source, self.body(node.body), self._orelse(node), None)
        return [_locate(node, loop), *forget]

    def _leave(self, node: ast.Break | ast.Continue) -> ast.If:
        word = type(node).__name__.lower()
        return _locate(node, ast.If(_call(node, "leave", word), [node], []))

    visit_Break = visit_Continue = _leave

    def visit_Return(self, node: ast.Return) -> ast.Return:
        node.value = _call(node, "returned", self.visit(node.value) if node.value else None)
        return node

    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        return [_do(node, "raising"), node]

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        message = self.visit(node.msg) if node.msg else _locate(node, ast.Constant(""))
        return _do(node, "assertion", self._condition(node.test), _thunk(message))

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        value = node.value
        if isinstance(value, ast.Constant):
            return node
        checks = []
        method = value.func if isinstance(value, ast.Call) else None
        if (
            isinstance(method, ast.Attribute)
            and isinstance(method.value, ast.Name)
            and method.attr in CHANGES
        ):
            name = method.value.id
            checks = [_do(value, "changing", name, _load(name), method.attr)]
        node.value = _call(value, "expression", self.visit(value))
        return [*checks, node]

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        forget = _forget(node, assigned_names([node]))
        first: list[ast.stmt] = []
        for item in node.items:
            target, opened = item.optional_vars, item.context_expr
            first += self._targets(target)
            names = tuple(n.id for n in _names(target))
            unpacked = isinstance(target, (ast.Tuple, ast.List))
            item.context_expr = _call(opened, "entering", self.visit(opened), names, unpacked)
        node.body = [*first, *self.body(node.body)]
        return [node, *forget]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        return [node, _bind(node, node.name, "target", node.name, _load(node.name))]

    # ── assignment ──

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        value = self.visit(node.value)
        if len(node.targets) == 1:
            return self._assign_to(node, node.targets[0], value)
        shared = self._temporary()
        done = [_bind(node, shared, "held", value)]
        for target in node.targets:
            done += self._assign_to(node, target, _locate(node, _load(shared)))
        return [*done, _drop(node, shared)]

    def _assign_to(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            return [_bind(node, target.id, "bind", _said(target, target.id), value)]
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, ast.Tuple) else []
            stars = any(isinstance(e, ast.Starred) for e in [*target.elts, *parts])
            if len(parts) == len(target.elts) and not stars:
                parts[:] = [
                    _call(node, "named", _said(t, t.id), v) if isinstance(t, ast.Name) else v
                    for t, v in zip(target.elts, parts, strict=True)
                ]
            return self._unpack(node, target.elts, value)
        if isinstance(target, ast.Attribute):
            owner = self.visit(target.value)
            return [_do(node, "set_attribute", owner, target.attr, value)]
        if isinstance(target, ast.Subscript):
            # the right side is evaluated before the target, as in Python
            part = self._temporary()
            first = _bind(value, part, "expression", value)
            self.generic_visit(target)
            stored = _locate(node, ast.Assign([target], _load(part)))
            return [first, *_storing(target), stored, _drop(node, part)]
        return self._refuse(target, "this assignment", "assign to a name, an element or a tuple")

    def _unpack(self, node: ast.stmt, targets: list[ast.expr], value: ast.expr) -> list[ast.stmt]:
        parts, later, names = [], [], []
        for target in targets:
            name = self._temporary()
            names.append(name)
            part: ast.expr = ast.Name(name, ast.Store())
            if isinstance(target, ast.Starred):
                target, part = target.value, ast.Starred(part, ast.Store())
            parts.append(part)
            later += self._assign_to(node, target, _locate(node, _load(name)))
        star = any(isinstance(target, ast.Starred) for target in targets)
        bound = {target.id for target in targets if isinstance(target, ast.Name)}
        stored = [
            self.visit(deepcopy(target.value))
            if isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Name)
            and target.value.id not in bound
            else None
            for target in targets
        ]
        found = _call(node, "unpack", value, len(targets), star, *stored)
        first = _locate(node, ast.Assign([ast.Tuple(parts, ast.Store())], found))
        return [first, *later, *(_drop(node, name) for name in names)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        annotation, target = self.visit(node.annotation), node.target
        value = self.visit(node.value) if node.value else None
        if isinstance(target, ast.Name):
            if value is None:
                return [_bind(node, target.id, "declare", target.id, annotation)]
            said = _said(target, target.id)
            return [_bind(node, target.id, "bind", said, value, annotation)]
        if value is None:
            self._refuse(node, "an annotation of something that is no name", "remove it")
        return self._assign_to(node, target, value)

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        target, op = node.target, _symbol(node.op)
        if isinstance(target, ast.Name):
            old = _call(target, "old", _load(target.id))
            value = self.visit(node.value)
            return [_bind(node, target.id, "augment", target.id, old, op, value)]
        checks = _storing(target)
        self.generic_visit(node)
        return [*checks, node]

    # ── expressions ──

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.args = [self._argument(each) for each in node.args]
        for keyword in node.keywords:
            keyword.value = self._argument(keyword.value)
        method = ""
        if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            method = "builtin"
        elif self._may_choose(node):
            method = "chosen"
            node.args.insert(1, _call(node, "mark"))
        if method:
            node.args.insert(0, node.func)
            node.func = _locate(node, ast.Attribute(_load(ENV), method, ast.Load()))
        return node

    def _argument(self, node: ast.expr) -> ast.expr:
        return _call(node, "argument", node) if isinstance(node, ast.Name) else node

    def _may_choose(self, node: ast.Call) -> bool:
        """A call that may be `T.if_then_else` under a name, with a call in one of its sides."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if not (isinstance(node.func, ast.Name) or name in ("if_then_else", "Select")):
            return False
        sides = [*node.args[1:], *(k.value for k in node.keywords)]
        plain = node.args and not any(isinstance(a, ast.Starred) for a in node.args)
        return bool(plain) and any(
            isinstance(i, ast.Call) for side in sides for i in ast.walk(side)
        )

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.iter = _call(node.iter, "items", node.iter)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        called = any(isinstance(inner, ast.Call) for inner in ast.walk(node.right))
        self.generic_visit(node)
        if called and isinstance(node.left, ast.Name):
            node.left = _call(node.left, "now", node.left)
        repeats = isinstance(node.op, ast.Mult) and isinstance(node.left, (ast.List, ast.Tuple))
        if repeats or isinstance(node.op, (ast.Pow, ast.LShift)):
            return _call(node, "power", _symbol(node.op), node.left, node.right)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.NamedExpr:
        node.value = _call(node, "bind", _said(node, node.target.id), self.visit(node.value))
        return node

    def _no_walrus(self, *nodes: ast.expr) -> None:
        for inner in (each for node in nodes for each in ast.walk(node)):
            if isinstance(inner, ast.NamedExpr):
                self._refuse(
                    inner, "`:=` inside `and`, `or` or a ternary", "assign on its own line"
                )

    def visit_IfExp(self, node: ast.IfExp) -> ast.Call:
        self._no_walrus(node.body, node.orelse)
        sides = (_thunk(self.visit(side)) for side in (node.body, node.orelse))
        return _call(node, "if_expression", self._condition(node.test), *sides)

    def _condition(self, node: ast.expr) -> Any:
        """An expression of which only the truth counts."""
        return self.visit_BoolOp(node, True) if isinstance(node, ast.BoolOp) else self.visit(node)

    def visit_BoolOp(self, node: ast.BoolOp, truth: bool = False) -> ast.Call:
        self._no_walrus(node)
        op = "and" if isinstance(node.op, ast.And) else "or"
        visit = self._condition if truth else self.visit
        sides = [_thunk(visit(value)) for value in node.values]
        return _call(node, "boolean" if truth else "choice", op, *sides)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not):
            return _call(node, "negate", self._condition(node.operand))
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.Call:
        self._no_walrus(node)
        ops = tuple(_symbol(op) for op in node.ops)
        sides = [_thunk(self.visit(side)) for side in (node.left, *node.comparators)]
        return _call(node, "compare", ops, *sides)


def rewrite(function: FunctionType) -> Callable[[Any], FunctionType]:
    """The function that, given how to start an `Env`, is `function` rewritten."""
    code = function.__code__
    find_definition(function)
    # a factory makes a new function of the same text each time it is called
    new = _rewrite(definition(function), code.co_name, code.co_freevars, code.co_flags & FUTURE)
    return lambda enter: with_code(function, new, CellType(enter))


@lru_cache(maxsize=512)
def _rewrite(found: Definition, name: str, names: tuple[str, ...], flags: int) -> CodeType:
    """By all that shapes it: bytecode has neither the file nor the annotations of locals."""
    rewriter = Rewriter(found.file)

    def change(node: ast.FunctionDef) -> None:
        params = [a.arg for a in arguments_of(node)]
        known = ast.Dict([ast.Constant(p) for p in params], [_load(p) for p in params])
        start = ast.Assign([ast.Name(ENV, ast.Store())], ast.Call(_load(ENTER), [known], []))
        node.body = [_locate(node.body[0], start), *rewriter.body(node.body)]

    new = changed(found, name, (*names, ENTER), flags, change)
    register(new, rewriter.columns)
    return new
