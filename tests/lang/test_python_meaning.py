"""Python in a kernel's text means what it means in Python, or is refused where it stands."""

from __future__ import annotations

import collections  # noqa: F401 for the texts
import dataclasses
import functools
import itertools
import linecache
import textwrap
import types  # noqa: F401

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.lang.common import refused

VALUES = list(range(1, 9))
EACH = """
def kernel(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
"""
ONCE = """
def kernel(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding(0)
        if t == 0:
"""


@dataclasses.dataclass
class Point:
    x: int
    y: list


class Slotted:
    __slots__ = ("x",)

    def __init__(self):
        self.x = 0

    def bump(self):
        self.x += 1


class Counted:
    count = 0

    @classmethod
    def bump(cls):
        cls.count += 1

    @functools.cached_property
    def half(self):
        return 4


TOTAL, ITEMS = 0, []


def bump_global():
    global TOTAL
    TOTAL += 1


def bump_items():
    ITEMS.append(1)


def bump_default(items=[]):  # noqa: B006
    items.append(1)


def bump_attribute():
    bump_attribute.count = getattr(bump_attribute, "count", 0) + 1


def numbers():
    n = 0
    while True:
        n += 1
        yield n


def fives():
    for x in [5, 5, 5]:  # noqa: UP028
        yield x


@functools.lru_cache
def cached(n):
    return n * 2


_made = itertools.count()


def kernel(head: str, body: str):
    """The function whose innermost statements are `body`."""
    source = head + textwrap.indent(textwrap.dedent(body).strip(), " " * 12) + "\n"
    file = f"<python meaning {next(_made)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space = dict(globals())
    exec(compile(source, file, "exec"), space)
    return space["kernel"]


def run(head: str, body: str) -> list[int]:
    a, b = np.array(VALUES, np.int32), np.zeros(8, np.int32)
    tw.compile(T.prim_func(kernel(head, body)), target="interp")(a, b)
    return b.tolist()


# ── expressions ──────────────────────────────────────────────────────────────────────────────

MEANT = """
1 if A[i] in range(2, 4) else 0
1 if A[i] not in range(0, 9, 3) else 0
1 if A[i] in range(9, 0, -2) else 0
1 if A[i] / 2 in range(4) else 0
1 if A[i] in {1: 5} else 0
1 if A[i] in {2, 3} else 0
1 if A[i] in np.array([1, 2]) else 0
1 if A[i] in collections.deque([1, 2]) else 0
1 if (A[i], 2) in [(3, 2), (4, 1)] else 0
1 if 3 in (A[i], A[0]) else 0
1 if 3 in {5: A[i]} else 0
1 if 3 in {5: A[i]}.values() else 0
1 if (A[i], 1) == (3, 1) else 0
1 if (A[i], 1) != (3, 1) else 0
1 if (A[i], 1) == (3, 1, 2) else 0
1 if [A[i], [2]] == [3, [2]] else 0
1 if (A[i], 1) < (3, 1) else 0
1 if (A[i], 5) <= (3, 4) else 0
1 if (A[i],) < (3, 1) else 0
1 if A[i] == np.int64(3) else 0
(A[i] - 1) or 5
(A[i] > 2) and A[i]
None or A[i]
0 or A[i]
A[i] and 0
(A[i] - 1) or (A[i] - 2) or 9
(A[i] > 2) and 5 or 6
(A[i] > 2 and A[i] < 5) or 7
not (A[i] - 1)
1 < A[i] < 5
1 < A[i] < A[0] + 3 < 9
max([A[i], 3])
min(x for x in (A[i], 3, A[0]))
sum([A[i], A[0]])
1 if any([A[i] > 3, A[i] < 2]) else 0
1 if all(A[j] > A[i] - 5 for j in (0, 1, 2)) else 0
abs(A[i] - 4)
divmod(A[i], 3)[0] * 10 + divmod(A[i], 3)[1]
int(A[i]) + bool(A[i] - 1)
(A[i] > 2) << 3
(A[i] > 2) + (A[i] > 3)
7 >> (A[i] > 2)
"""


@pytest.mark.parametrize("text", MEANT.strip().splitlines())
def test_an_expression_means_what_it_means_in_python(text):
    names = {**globals(), "A": VALUES}
    wanted = [int(eval(text, {**names, "i": i})) for i in range(8)]
    assert run(EACH, f"B[i] = {text}") == wanted


REFUSED = """
{1: 5}.get(A[i], 9) | looked up with a run-time value
{A[i]: 1}[1] | looked up with a run-time value
len({A[i], 1}) | looked up with a run-time value
len(set([A[i], A[0]])) | looked up with a run-time value
collections.Counter([A[i]])[1] | looked up with a run-time value
cached(A[i]) | looked up with a run-time value
hash(A[i]) | looked up with a run-time value
{(A[i], 1): 1}[(1, 1)] | looked up with a run-time value
[1, 2, 3].index(A[i]) | True or False
[1, 2].count(A[i]) | True or False
sorted([A[i], 3])[0] | True or False
len([x for x in (1, 2) if A[i] > 1]) | True or False
1 if {'a': A[i]} == {'a': 3} else 0 | True or False
1 if Point(A[i], []) == Point(1, []) else 0 | True or False
len(str(A[i])) | has no text
len(f"{A[i]}") | has no text
len("%s" % A[i]) | has no text
1 if isinstance(A[i], int) else 0 | T.PrimExpr
'abc'[A[i]:] | compile-time integer
A[i] or None | cannot be used as a value
1 if A[i] in 'abc' else 0 | requires string
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_an_expression_is_refused(line):
    text, words = (part.strip() for part in line.rsplit("|", 1))
    error = refused(kernel(EACH, f"B[i] = {text}"), words)
    assert error.loc is not None and error.loc.line == 5


def test_a_plain_helper_compares_and_keys_numbers():
    table = {1: 5}

    def look_up(x):
        return table.get(x, 9)

    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            A[0] = look_up(A[1])

    refused(f, "looked up with a run-time value", "called from")


# ── compile-time state ───────────────────────────────────────────────────────────────────────

CHANGES = """
| ob = types.SimpleNamespace(x=0) | setattr(ob, "x", 5)
| d = collections.deque([0]) | d.append(5)
| e = np.zeros(1, int) | e[0] = 5
| e = np.zeros(1, int) | np.add(e, 1, out=e)
| l = [0]; push = l.append | push(5)
| l = [0] | l.__setitem__(0, 7)
| l = [[0], [1]] | l[1].append(3)
| d = {"a": {"b": 0}} | d["a"]["b"] = 3
| d = collections.OrderedDict(a=1, b=2) | d.move_to_end("a")
| s = {1} | s.discard(1)
| b = bytearray(3) | b[0] = 1
| it = iter([1, 2, 3]) | next(it)
| it = itertools.count() | next(it)
| it = (x for x in (5, 5, 5)) | next(it)
| it = numbers() | next(it)
| it = fives() | next(it)
| it = zip([1, 2], [3, 4]) | next(it)
| p = Point(1, [2]) | p.y.append(2)
| p = Point(1, [2]) | p.x = 3
| p = Point(1, [2]) | p.x += 3
| p = Point(1, [2]) | p.z = 3
| ob = Slotted() | ob.bump()
| ob = Counted() | ob.bump()
| f = functools.partial(list.append, []) | f(1)
| l = [0] | [l.append(x) for x in (1, 2)]
| l = [0] | (lambda: l.append(2))()
| pass | bump_global()
| pass | bump_items()
| pass | bump_default()
| pass | bump_attribute()
"""


@pytest.mark.parametrize("scope", ["if A[i] > 4:", "for j in range(2):", "while A[i] > 9:"])
@pytest.mark.parametrize("line", CHANGES.strip().splitlines())
def test_compile_time_state_does_not_change_at_run_time(line, scope):
    _, setup, change = (part.strip() for part in line.split("|"))
    setup = setup.replace("; ", "\n")
    error = refused(kernel(EACH, f"{setup}\n{scope}\n    {change}\nB[i] = 0"))
    assert error.loc is not None and error.loc.line >= 5
    assert "run-time" in str(error) and "fix:" in str(error)


def test_a_closure_does_not_change_at_run_time():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            c = 0

            def bump():
                nonlocal c
                c = c + 5

            if A[0] > 4:
                bump()
            A[1] = c

    refused(f, "'c' is a Python number", "T.alloc_var", line="if A[0] > 4")


@pytest.mark.parametrize("text", ["l.pop() if A[i] > 5 else 0", "(A[i] > 4) and l.append(5) or 1"])
def test_a_side_of_an_expression_changes_nothing(text):
    refused(kernel(EACH, f"l = [0]\nB[i] = {text}"), "'l' is a Python list")


UNCHANGED = """
if A[i] > 4:
    B[i] = half.half
else:
    own = []
    own.append(3)
    B[i] = own[0]

if A[i] > 4:
    push(1)
    pop()
    B[i] = cached(2)
else:
    B[i] = 3
"""


@pytest.mark.parametrize("body", UNCHANGED.strip().split("\n\n"))
def test_what_stays_as_it_was_is_fine(body):
    setup = (
        "half, stack = Counted(), []\npush, pop = stack.append, stack.pop\nq = np.ones((2, 3))\n"
    )
    assert run(EACH, setup + body) == [3] * 4 + [4] * 4


# ── reads ────────────────────────────────────────────────────────────────────────────────────

LATE = """
d = {'x': A[0]}; A[0] = 50; B[0] = d['x'] | 1
d = [A[0]]; A[0] = 50; B[0] = d[0] | 1
d = ((A[0] * 2,),); A[0] = 50; B[0] = d[0][0] | 2
d = types.SimpleNamespace(x=A[0]); A[0] = 50; B[0] = d.x | 1
d = Point(A[0] + 1, [A[1]]); A[0] = 50; A[1] = 60; B[0] = d.x + d.y[0] | 4
g = lambda x=A[0]: x; A[0] = 50; B[0] = g() | 1
f = functools.partial(lambda x: x + 1, A[0]); A[0] = 50; B[0] = f() | 2
f = (lambda v: lambda: v)(A[0]); A[0] = 50; B[0] = f() | 1
f = lambda: A[0]; A[0] = 50; B[0] = f() | 50
it = iter([A[0], A[1]]); A[0] = 50; B[0] = next(it) | 1
l = []; l.append(A[0]); A[0] = 50; B[0] = l[0] | 1
d = {'x': A[0] if A[1] > 0 else 0}; A[0] = 9; B[0] = d['x'] | 1
d = {'x': A[A[0]]}; A[0] = 3; B[0] = d['x'] | 2
v = T.alloc_var('int32', init=3); d = {'x': v + 1}; v = 9; B[0] = d['x'] | 4
l = [A[0] + 1]; m = l; m.append(5); B[0] = l[-1] | 5
B[0] = A[0] + T.atomic_add(A[0], 10, return_prev=True) | 2
B[0] = A[0] * 2 + T.atomic_add(A[0], 10, return_prev=True) | 3
B[0] = T.atomic_add(A[0], 10, return_prev=True) + A[0] | 12
B[0] = max(A[0], T.atomic_add(A[0], 10, return_prev=True)) | 1
B[0] = 1 if A[0] < T.atomic_add(A[0], 10, return_prev=True) else 0 | 0
A[0] += T.atomic_add(A[0], 10, return_prev=True); B[0] = A[0] | 2
B[T.atomic_add(A[0], 1, return_prev=True) - 1] = A[0] | 1
r = A[A[0]:A[0] + 2]; A[0] = 3; B[0] = r[0] | 2
v = T.alloc_var('int32', init=3); B[0] = v + grown(v) | 7
v = T.alloc_var('int32', init=3); v += grown(v); B[0] = v | 7
"""


@T.macro
def grown(x: T.Ref):
    x = x + 1
    return x + 0


@pytest.mark.parametrize("line", LATE.strip().splitlines())
def test_an_element_is_read_where_it_stands(line):
    body, wanted = line.rsplit("|", 1)
    assert run(ONCE, body.replace("; ", "\n")) == [int(wanted)] + [0] * 7


STALE = """
d = {'x': A[0]}; for j in range(3):;     A[0] = A[0] + 1; B[0] = d['x'] | a loop that writes it
d = {'x': A[0]}; for j in range(3):;     B[0] = B[0] + d['x']; A[0] = 1 | a loop that writes it
d = {'x': A[0]}; while d['x'] < A[0]:;     A[0] = A[0] - 1 | a loop that writes it
v = T.alloc_var('int32', init=3); d = {'x': v}; v = 9; B[0] = d['x'] | 'd' holds the variable v
v = T.alloc_var('int32', init=3); l = []; l.append(v); v = 9; B[0] = l[0] | holds the variable v
v = T.alloc_var('int32', init=3); d = Point(v, []); v = 9; B[0] = d.x | holds the variable v
v = T.alloc_var('int32', init=3); for x in (v, 1):;     x = 7 | 'x' is the value of v here
B[0] = T.if_then_else(A[1] > 9, T.atomic_add(A[2], 1, return_prev=True), 7) | whichever is chosen
w = T.if_then_else; B[0] = w(A[1] > 9, T.atomic_add(A[2], 1, return_prev=True), 7) | whichever
B[0] = T.atomic_add(A[2], 1, return_prev=True) if A[1] > 9 else 7 | must not do anything but
B[0] = (A[1] > 9) and T.atomic_add(A[2], 1, return_prev=True) | must not do anything but
B[0] = 1 if A[1] < 0 < T.atomic_add(A[2], 1, return_prev=True) else 0 | must not do anything but
"""


@pytest.mark.parametrize("line", STALE.strip().splitlines())
def test_a_value_that_cannot_be_kept_is_refused(line):
    body, words = (part.strip() for part in line.rsplit("|", 1))
    head, colon, inner = body.partition(":;")  # what follows is one line
    body = head.replace("; ", "\n") + (f":\n    {inner.strip()}" if colon else "")
    refused(kernel(ONCE, body), words)


def test_a_name_of_an_earlier_kernel_is_free():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_fragment((8,), "int32")
            n = T.alloc_var("int32", init=1)
            T.copy(A, s)
            T.copy(s, B)
            B[0] = n
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                s = B[i] * 2
                n = s + 1
                A[i] = n

    a, b = np.array(VALUES, np.int32), np.zeros(8, np.int32)
    tw.compile(f, target="interp")(a, b)
    assert a.tolist() == [3, 5, 7, 9, 11, 13, 15, 17]


def test_a_number_of_an_earlier_kernel_has_gone():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            x = A[0]
            A[1] = x
        with T.Kernel(1):
            A[2] = x

    refused(f, "'x' was bound in an earlier kernel", "T.alloc_global", line="A[2] = x")


# ── places ───────────────────────────────────────────────────────────────────────────────────


def test_an_error_names_the_line_of_its_own_kernel(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TRACEBACK", "1")  # which keeps the first kernel's expressions

    def first(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=8):
            t = T.get_thread_binding(0)
            f = T.alloc_fragment((8,), "float32")
            A[t] = f[t] * 2 + 1

    def second(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=8):
            t = T.get_thread_binding(0)
            f = T.alloc_fragment((8,), "float32")
            T.copy(A, f)
            A[t] = f[t] * 2 + 1

    kept = refused(first, "f is a fragment and is indexed by thread", line="A[t] =")
    assert kept.__traceback__ is not None
    refused(second, "f is a fragment and is indexed by thread", line="A[t] =")
