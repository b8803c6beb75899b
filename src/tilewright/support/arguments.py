"""The arguments of calls, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Signature
from typing import Any

from tilewright.support.errors import CompileError, suggest


def bound_arguments(
    name: str,
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    partial: bool = False,
) -> dict[str, Any]:
    """The arguments of `name(*args, **kwargs)`, defaults included.

    >>> from inspect import signature
    >>> bound_arguments("scaled", signature(lambda x, by=2: x * by), (1,), {})
    {'x': 1, 'by': 2}
    """
    try:
        bound = (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except TypeError as error:
        wrong = [word for word in kwargs if word not in signature.parameters]
        told = "pass the arguments that its signature names"
        fix, repair = suggest(wrong[0], signature.parameters, told) if wrong else (told, None)
        raise CompileError(
            f"{name}: {error}",
            expected=f"{name}{signature}",
            fix=fix,
            code="arguments",
            repair=repair,
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)
