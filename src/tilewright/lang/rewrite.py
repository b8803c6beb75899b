"""A kernel's text → the same function with control flow and assignments turned into calls of
`Env`. Line and column numbers stay those of the user's file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

from tilewright.lang.where import register, span_of
from tilewright.support.definitions import FUTURE, Definition, definition
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
_OPS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<",
    ast.RShift: ">>", ast.MatMult: "@", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.In: "in", ast.NotIn: "not in", ast.Is: "is",
    ast.IsNot: "is not",
}  # fmt: skip
_REFUSED = {
    ast.Try: ("`try`", "nothing is raised on a device: check with an `if` instead"),
    ast.Global: (
        "`global`",
        "leave it out: a kernel reads globals, and keeps its results in tensors",
    ),
    ast.Nonlocal: ("`nonlocal`", "leave it out: a kernel's results are in tensors"),
    ast.Delete: ("`del`", "leave it out: names end with the kernel"),
    ast.ClassDef: ("a class", "define it outside the kernel"),
    ast.AsyncFunctionDef: ("`async`", "use a plain function"),
    ast.AsyncFor: ("`async for`", "use `for`"),
    ast.AsyncWith: ("`async with`", "use `with`"),
    ast.Yield: ("`yield`", "leave it out: a kernel's results are in tensors"),
    ast.YieldFrom: ("`yield from`", "leave it out: a kernel's results are in tensors"),
    ast.Await: ("`await`", "call a plain function"),
}


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


def _copy(node: Any) -> Any:
    """A private copy of a tree that others keep."""
    if isinstance(node, ast.AST):
        fields = {name: _copy(value) for name, value in ast.iter_fields(node)}
        new = type(node)(**fields)
        return ast.copy_location(new, node)
    if isinstance(node, list):
        return [_copy(item) for item in node]
    return node


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


class Rewriter(ast.NodeTransformer):
    """Statements and expressions over run-time values become calls."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.temporaries = 0
        self.columns: dict[int, int] = {}

    # ── making nodes ──

    def _call(self, at: ast.AST, method: str, *args: ast.expr) -> ast.Call:
        owner = ast.Name(ENV, ast.Load())
        return _locate(at, ast.Call(ast.Attribute(owner, method, ast.Load()), list(args), []))

    def _said(self, at: ast.AST, name: str) -> ast.Call:
        return self._call(at, "name", self._text(at, name))

    def _text(self, at: ast.AST, value: Any) -> ast.Constant:
        return _locate(at, ast.Constant(value))

    def _thunk(self, at: ast.expr) -> ast.Lambda:
        empty = ast.arguments([], [], None, [], [], None, [])
        return _locate(at, ast.Lambda(empty, at))

    def _temporary(self) -> str:
        self.temporaries += 1
        return f"_tw_{self.temporaries}"

    def _assign(self, at: ast.AST, name: str, value: ast.expr) -> ast.Assign:
        return _locate(at, ast.Assign([ast.Name(name, ast.Store())], value))

    def _do(self, at: ast.AST, value: ast.expr) -> ast.Expr:
        return _locate(at, ast.Expr(value))

    def _load(self, at: ast.AST, name: str) -> ast.Name:
        return _locate(at, ast.Name(name, ast.Load()))

    def _refuse(self, node: ast.AST, what: str, fix: str) -> Any:
        raise CompileError(
            f"{what} is not part of the kernel language",
            loc=location(node, self.filename),
            fix=fix,
            code="python",
        )

    # ── statements ──

    def visit(self, node: ast.AST) -> Any:
        refused = _REFUSED.get(type(node))
        if refused or type(node).__name__ in ("TryStar", "Match"):
            what, fix = refused or (f"`{type(node).__name__.lower()}`", "use `if` and `elif`")
            self._refuse(node, what, fix)
        if isinstance(node, ast.stmt):
            self.columns.setdefault(node.lineno, node.col_offset)
        return super().visit(node)

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            done += result if isinstance(result, list) else [result]
        return done

    def _after(self, node: ast.AST, names: list[str], word: str = "lost") -> list[ast.stmt]:
        """Names that a run-time scope bound are lost after it."""

        def forget(name: str) -> ast.If:
            lost = self._call(node, "lost_value", self._text(node, name))
            test = self._call(node, word, self._text(node, name))
            return _locate(node, ast.If(test, [self._assign(node, name, lost)], []))

        return [forget(name) for name in names]

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        names = assigned_names([*node.body, *node.orelse])
        branch = self._temporary()

        def method(word: str) -> ast.Call:
            owner = ast.Attribute(ast.Name(branch, ast.Load()), word, ast.Load())
            return _locate(node.test, ast.Call(owner, [], []))

        start = self._call(node.test, "branch", self._condition(node.test))
        then = [*self.body(node.body), self._do(node.test, method("end_then"))]
        done: list[ast.stmt] = [
            self._assign(node.test, branch, start),
            _locate(node, ast.If(method("then"), then, [])),
        ]
        if node.orelse:
            done += self._after(node, names)
            done.append(_locate(node, ast.If(method("orelse"), self.body(node.orelse), [])))
        done.append(self._do(node.test, method("end")))
        return done + self._after(node, names)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        names = [n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)]
        iterable = node.iter
        if (
            isinstance(iterable, ast.Call)
            and isinstance(iterable.func, ast.Name)
            and iterable.func.id == "range"
        ):
            args = [self.visit(a) for a in iterable.args]
            call = self._call(iterable, "call_range", self._load(iterable, "range"), *args)
            call.keywords = [self.visit(k) for k in iterable.keywords]
            source: ast.expr = call
        else:
            source = self.visit(iterable)
        hint = _locate(node, ast.Tuple([self._text(node, n) for n in names], ast.Load()))
        target, first = self._target(node.target)
        inner = [*first, *self.body(node.body)]
        loop = ast.For(target, self._call(iterable, "loop", source, hint), inner, [], None)
        if node.orelse:
            loop.orelse = [
                self._check_else(node), *self.body(node.orelse)
            ]  # fmt: skip
        after = self._after(node, assigned_names([node]))
        return [_locate(node, loop), *after]

    def _check_else(self, node: ast.For | ast.While) -> ast.Expr:
        return self._do(node.orelse[0], self._call(node.orelse[0], "check_else"))

    def _target(self, target: ast.expr) -> tuple[ast.expr, list[ast.stmt]]:
        """A `for`/`with` target, and the statements that make its names known."""
        names = [n for n in ast.walk(target) if isinstance(n, ast.Name)]
        for each in ast.walk(target):
            if isinstance(each, (ast.Subscript, ast.Attribute)):
                self._refuse(each, "a loop target that is not a name", "bind a name")
        return target, [
            self._assign(n, n.id, self._call(n, "target", self._text(n, n.id), self._load(n, n.id)))
            for n in names
        ]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test)):
            self._refuse(
                node.test,
                "`:=` in the condition of a while",
                "assign to an alloc_var before the loop and at its end",
            )
        cond = self._thunk(self._condition(node.test))
        loop = ast.For(
            _locate(node, ast.Name(self._temporary(), ast.Store())),
            self._call(node.test, "while_loop", cond),
            self.body(node.body),
            [],
            None,
        )
        if node.orelse:
            loop.orelse = [
                self._check_else(node), *self.body(node.orelse)
            ]  # fmt: skip
        return [_locate(node, loop), *self._after(node, assigned_names(node.body))]

    def _leave(self, node: ast.Break | ast.Continue, word: str) -> ast.If:
        return _locate(node, ast.If(self._call(node, "leave", self._text(node, word)), [node], []))

    def visit_Break(self, node: ast.Break) -> ast.If:
        return self._leave(node, "break")

    def visit_Continue(self, node: ast.Continue) -> ast.If:
        return self._leave(node, "continue")

    def visit_Return(self, node: ast.Return) -> ast.Return:
        value = self.visit(node.value) if node.value else self._text(node, None)
        return _locate(node, ast.Return(self._call(node, "returned", value)))

    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        return [self._do(node, self._call(node, "raising")), node]

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        message = self.visit(node.msg) if node.msg else self._text(node, "")
        return self._do(
            node, self._call(node, "assertion", self._condition(node.test), self._thunk(message))
        )

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        if isinstance(node.value, ast.Constant):
            return node
        checks = self._changing(node.value)
        done = _locate(node, ast.Expr(self._call(node.value, "expression", self.visit(node.value))))
        return [*checks, done]

    def _changing(self, node: ast.expr) -> list[ast.stmt]:
        """`name.append(…)` as a statement."""
        method = node.func if isinstance(node, ast.Call) else None
        if not (isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name)):
            return []
        if method.attr not in CHANGES:
            return []
        name = self._text(node, method.value.id)
        owner = self._load(node, method.value.id)
        return [
            self._do(node, self._call(node, "changing", name, owner, self._text(node, method.attr)))
        ]

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        items, first = [], []
        for item in node.items:
            names: list[str] = []
            target = None
            unpacked = isinstance(item.optional_vars, (ast.Tuple, ast.List))
            if item.optional_vars is not None:
                names = [n.id for n in ast.walk(item.optional_vars) if isinstance(n, ast.Name)]
                target, known = self._target(item.optional_vars)
                first += known
            hint = _locate(node, ast.Tuple([self._text(node, n) for n in names], ast.Load()))
            flag = _locate(node, ast.Constant(unpacked))
            opened = self.visit(item.context_expr)
            manager = self._call(item.context_expr, "entering", opened, hint, flag)
            items.append(ast.withitem(manager, target))
        done = _locate(node, ast.With(items, [*first, *self.body(node.body)], None))
        return [done, *self._after(node, assigned_names([node]), "lost_with")]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        name = self._text(node, node.name)
        bind = self._call(node, "target", name, self._load(node, node.name))
        return [node, self._assign(node, node.name, bind)]

    # ── assignment ──

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        if len(node.targets) == 1:
            return self._assign_to(node, node.targets[0], self.visit(node.value))
        shared = self._temporary()
        done: list[ast.stmt] = [
            self._assign(node, shared, self._call(node, "held", self.visit(node.value)))
        ]
        for target in node.targets:
            done += self._assign_to(node, target, self._load(node, shared))
        return done

    def _assign_to(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            said = self._said(target, target.id)
            return [self._assign(node, target.id, self._call(node, "bind", said, value))]
        if isinstance(target, (ast.Tuple, ast.List)):
            stars = any(isinstance(e, ast.Starred) for e in [*target.elts, *_parts(value)])
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) and not stars:
                value.elts = [
                    self._call(node, "named", self._said(t, t.id), v)
                    if isinstance(t, ast.Name)
                    else v
                    for t, v in zip(target.elts, value.elts, strict=True)
                ]
            return self._unpack(node, target.elts, value)
        if isinstance(target, ast.Attribute):
            name = self._text(target, target.attr)
            owner = self.visit(target.value)
            return [self._do(node, self._call(node, "set_attribute", owner, name, value))]
        if isinstance(target, ast.Subscript):
            # the right side is evaluated before the target, as in Python
            part = self._temporary()
            done: list[ast.stmt] = [
                self._assign(node, part, self._call(value, "expression", value))
            ]
            done += self._storing(target)
            place = _locate(
                target,
                ast.Subscript(self.visit(target.value), self.visit(target.slice), ast.Store()),
            )
            done.append(_locate(node, ast.Assign([place], self._load(node, part))))
            return done
        return self._refuse(target, "this assignment", "assign to a name, an element or a tuple")  # type: ignore[no-any-return]

    def _storing(self, target: ast.Subscript) -> list[ast.stmt]:
        if not isinstance(target.value, ast.Name):
            return []
        name = target.value.id
        check = self._call(target, "storing", self._text(target, name), self._load(target, name))
        return [self._do(target, check)]

    def _unpack(self, node: ast.stmt, targets: list[ast.expr], value: ast.expr) -> list[ast.stmt]:
        star = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
        parts = self._temporary()
        call = self._call(
            node,
            "unpack",
            value,
            self._text(node, len(targets)),
            self._text(node, star is not None),
        )
        done: list[ast.stmt] = [self._assign(node, parts, call)]
        for at, target in enumerate(targets):
            if star is not None and at == star:
                stop = at - len(targets) + 1
                key: ast.expr = ast.Slice(
                    self._text(node, at), self._text(node, stop) if stop else None, None
                )
                assert isinstance(target, ast.Starred)
                target = target.value
            else:
                key = self._text(node, at if star is None or at < star else at - len(targets))
            part = _locate(
                node, ast.Subscript(self._load(node, parts), _locate(node, key), ast.Load())
            )
            done += self._assign_to(node, target, part)
        return done

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        annotation = self.visit(node.annotation)
        if not isinstance(node.target, ast.Name):
            if node.value is None:
                self._refuse(node, "an annotation of something that is no name", "remove it")
            assert node.value is not None
            return self._assign_to(node, node.target, self.visit(node.value))
        name = node.target.id
        if node.value is None:
            call = self._call(node, "declare", self._text(node, name), annotation)
            return [self._assign(node, name, call)]
        said = self._said(node.target, name)
        call = self._call(node, "bind", said, self.visit(node.value), annotation)
        return [self._assign(node, name, call)]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        if isinstance(node.target, ast.Name):
            name = node.target.id
            call = self._call(
                node, "augment", self._text(node, name),
                self._call(node.target, "old", self._load(node, name)),
                self._text(node, _OPS[type(node.op)]), self.visit(node.value),
            )  # fmt: skip
            return [self._assign(node, name, call)]
        checks = self._storing(node.target) if isinstance(node.target, ast.Subscript) else []
        node.target = self.visit(node.target)
        node.value = self.visit(node.value)
        return [*checks, node]

    # ── expressions ──

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.args = [self._argument(each) for each in node.args]
        for keyword in node.keywords:
            keyword.value = self._argument(keyword.value)
        if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            node.args.insert(0, node.func)
            owner = _locate(node, ast.Name(ENV, ast.Load()))
            node.func = _locate(node, ast.Attribute(owner, "builtin", ast.Load()))
        elif self._may_choose(node):
            node.args[1:1] = [self._call(node, "mark")]
            node.args.insert(0, node.func)
            owner = _locate(node, ast.Name(ENV, ast.Load()))
            node.func = _locate(node, ast.Attribute(owner, "chosen", ast.Load()))
        return node

    def _argument(self, node: ast.expr) -> ast.expr:
        return self._call(node, "argument", node) if isinstance(node, ast.Name) else node

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
        node.iter = self._call(node.iter, "items", node.iter)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        called = any(isinstance(inner, ast.Call) for inner in ast.walk(node.right))
        self.generic_visit(node)
        if called and isinstance(node.left, ast.Name):
            node.left = self._call(node.left, "now", node.left)
        sequence = isinstance(node.left, (ast.List, ast.Tuple))
        if isinstance(node.op, (ast.Pow, ast.LShift)) or (
            isinstance(node.op, ast.Mult) and sequence
        ):
            op = self._text(node, _OPS[type(node.op)])
            return self._call(node, "power", op, node.left, node.right)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.NamedExpr:
        said = self._said(node, node.target.id)
        node.value = self._call(node, "bind", said, self.visit(node.value))
        return node

    def _no_walrus(self, node: ast.expr) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                self._refuse(
                    inner, "`:=` inside `and`, `or` or a ternary", "assign on its own line"
                )

    def visit_IfExp(self, node: ast.IfExp) -> ast.Call:
        self._no_walrus(node.body)
        self._no_walrus(node.orelse)
        return self._call(
            node, "if_expression", self._condition(node.test),
            self._thunk(self.visit(node.body)), self._thunk(self.visit(node.orelse)),
        )  # fmt: skip

    def _condition(self, node: ast.expr) -> Any:
        """An expression of which only the truth counts."""
        return self.visit_BoolOp(node, True) if isinstance(node, ast.BoolOp) else self.visit(node)

    def visit_BoolOp(self, node: ast.BoolOp, truth: bool = False) -> ast.Call:
        self._no_walrus(node)
        op = "and" if isinstance(node.op, ast.And) else "or"
        visit = self._condition if truth else self.visit
        sides = [self._thunk(visit(value)) for value in node.values]
        return self._call(node, "boolean" if truth else "choice", self._text(node, op), *sides)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            return self._call(node, "negate", self._condition(node.operand))
        node.operand = self.visit(node.operand)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Call:
        self._no_walrus(node)
        ops = _locate(
            node, ast.Tuple([self._text(node, _OPS[type(op)]) for op in node.ops], ast.Load())
        )
        sides = [self._thunk(self.visit(side)) for side in (node.left, *node.comparators)]
        return self._call(node, "compare", ops, *sides)


def _parts(value: ast.expr) -> list[ast.expr]:
    return value.elts if isinstance(value, ast.Tuple) else []


def _locate(at: ast.AST, node: Node) -> Node:
    """`node` and its unplaced children at the place of `at`."""
    ast.copy_location(node, at)
    for child in ast.iter_child_nodes(node):
        if not hasattr(child, "lineno"):
            _locate(at, child)
    return node


def rewrite(function: FunctionType) -> Callable[[Any], FunctionType]:
    """The function that, given how to start an `Env`, is `function` rewritten."""
    code = function.__code__
    find_definition(function)
    # a factory makes a new function of the same text each time it is called
    new = _rewrite(definition(function), code.co_name, code.co_freevars, code.co_flags & FUTURE)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))

    def make(enter: Any) -> FunctionType:
        closure = tuple(CellType(enter) if n == ENTER else cells[n] for n in new.co_freevars)
        made = FunctionType(new, function.__globals__, function.__name__, None, closure)
        made.__qualname__ = function.__name__
        made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        return made

    return make


@lru_cache(maxsize=512)
def _rewrite(found: Definition, name: str, names: tuple[str, ...], flags: int) -> CodeType:
    """By all that shapes it: bytecode has neither the file nor the annotations of locals."""
    node = _copy(found.node)
    rewriter = Rewriter(found.file)
    params = [a.arg for a in _arguments(node.args)]
    known = ast.Dict([ast.Constant(p) for p in params], [ast.Name(p, ast.Load()) for p in params])
    start = ast.Assign(
        [ast.Name(ENV, ast.Store())], ast.Call(ast.Name(ENTER, ast.Load()), [known], [])
    )
    node.body = [_locate(node.body[0], start), *rewriter.body(node.body)]
    # its own name, where the text says it, is what it was outside
    node.name = "_tw_inner"
    node.decorator_list, node.returns = [], None
    node.args.defaults = []
    node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
    for argument in _arguments(node.args):
        argument.annotation = None
    free = [*names, ENTER]
    module = ast.parse(f"def _tw_outer({', '.join(free)}): pass")
    outer = module.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [node]
    compiled = compile(
        ast.fix_missing_locations(module), found.file, "exec", flags, dont_inherit=True
    )
    new = _nested(_nested(compiled, "_tw_outer"), node.name).replace(co_name=name)
    register(new, rewriter.columns)
    return new


def _arguments(args: ast.arguments) -> list[ast.arg]:
    extra = [a for a in (args.vararg, args.kwarg) if a is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *extra]


def _nested(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
