"""Identifiers of the generated source for names that Python and the IR take: words of C++ and CUDA
and names outside ASCII are changed, different names stay different."""

from __future__ import annotations

import re
from collections.abc import Iterable

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true
try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor
xor_eq
"""
# variables and macros that a source sees without including anything
_CUDA = """
blockDim blockIdx gridDim threadIdx warpSize dim3 std
NULL NAN INFINITY HUGE_VAL HUGE_VALF EOF CHAR_BIT RAND_MAX M_PI M_E FLT_MAX FLT_MIN FLT_EPSILON
DBL_MAX DBL_MIN DBL_EPSILON offsetof assert errno linux unix i386 va_start va_arg va_end
"""
# functions of float32 and float64 that have the C library's names; float32's end in f
LIBRARY = frozenset(
    "exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh "
    "tanh erf floor ceil trunc pow fmod atan2 copysign fma".split()
)
# functions that the emitter calls: a variable of that name would hide one
_CALLED = "min max abs printf isnan isinf isfinite"
_MATH = LIBRARY | {"rint", "fabs", "fmin", "fmax"}
_SHARED = "shared tw"  # what the emitter itself writes
RESERVED = frozenset(
    [*f"{_KEYWORDS} {_CUDA} {_CALLED} {_SHARED}".split(), *_MATH, *(f"{name}f" for name in _MATH)]
)
# what compilers, limits and types are called
_PATTERNS = re.compile(
    r"_[A-Z_]\w*|TW_\w*|CUDART_\w*|CUDA_\w*|S?U?(?:CHAR|SHRT|INT|LONG|LLONG|SIZE|WCHAR)\d*_M\w+|"
    r"U?INT\w*_C|\w+_t|(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]"
)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _changed(found: re.Match[str]) -> str:
    return "_" if found[0].isascii() else f"_u{ord(found[0]):x}"


class Names:
    """Identifiers for the IR's names; `also` are words that the source has besides."""

    def __init__(self, also: Iterable[str] = ()) -> None:
        self._found: dict[str, str] = {}
        self._taken: set[str] = set(also)

    def of(self, name: str) -> str:
        if name not in self._found:
            plain = re.sub(r"\W", _changed, name, flags=re.ASCII)
            if plain in RESERVED:
                plain += "_"
            elif _PATTERNS.fullmatch(plain) or not re.match(r"[A-Za-z_]", plain):
                plain = f"v{plain}"
            while plain in self._taken:
                plain += "_"
            self._taken.add(plain)
            self._found[name] = plain
        return self._found[name]


def words_of(sources: Iterable[str]) -> set[str]:
    """The words of imported source: functions, types and macros may be among them."""
    return {word for source in sources for word in _WORD.findall(source)}


def comment(text: str) -> str:
    """`text` fit to stand after `//`: one line, whatever is in it."""
    return re.sub(r"[^ -\[\]-~]", "?", text)


def quoted_path(path: str) -> str:
    """A path in a `#line`: what no line can hold is shown as `?`, a backslash as `/`. NVRTC copies
    quotes into PTX, where they end the path, and crashes where a path ends like a folder's."""
    path = re.sub(r'[\x00-\x1f\x7f"]', "?", path)
    return path.encode("utf-8", "replace").decode("utf-8").replace("\\", "/").rstrip("/") or "?"
