"""Arguments of public functions are held against their annotations, before anything else happens.

What an annotation says, a check need not repeat: :func:`checked` refuses an argument of another
type (or a word that is not among those of a ``Literal``) by an error that names it. Ranges, shapes
and everything else that a type does not say remain with each function; see :mod:`._checks`.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Integral
from os import PathLike
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from botorch_dp._checks import check_path, check_real

F = TypeVar("F", bound=Callable[..., Any])
#: Raises if a value under a name is not what it should be.
Check = Callable[[str, Any], None]

#: Methods without an underscore, and these, are checked.
_SPECIAL = {"__init__", "__call__", "__new__"}
#: Whose arithmetic fails for our arguments only.
_BELOW = {"botorch_dp", "fractions", "numpy", "opendp", "scipy"}
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class OutOfRange(ValueError):
    """Numbers so large or so small that nothing can be computed with them."""


class _Unloaded(type):
    """Stands for a class of a module that may not be loaded: nothing is one of its objects then."""

    module: str

    def __instancecheck__(cls, value: object) -> bool:
        module = sys.modules.get(cls.module)
        kind = getattr(module, cls.__name__, None)
        return module is not None and (not isinstance(kind, type) or isinstance(value, kind))


def checked_but(*names: str) -> Callable[[F], F]:
    """As :func:`checked`, but for arguments whose own checks say more than their types do."""
    return lambda target: checked(target, names)


def checked(target: F, but: Sequence[str] = ()) -> F:
    """Decorator of a public function, or of a class: its constructor and public methods.

    Args:
        target: What is decorated.
        but: Names of arguments that are left alone.

    Example:
        >>> @checked
        ... def twice(number: float) -> float:
        ...     return 2 * number
        >>> twice("1")
        Traceback (most recent call last):
        TypeError: `number` must be a real number, got str.
    """
    if not isinstance(target, type):
        return _wrapped(target, but)
    for name, member in list(vars(target).items()):
        kind = type(member) if isinstance(member, staticmethod | classmethod) else None
        function = member.__func__ if kind else member
        public = name in _SPECIAL or not name.startswith("_")
        if public and isinstance(function, types.FunctionType):
            wrapped = _wrapped(function, but, method=kind is not staticmethod)
            setattr(target, name, kind(wrapped) if kind else wrapped)
    return target


def _wrapped(function: Any, but: Sequence[str], *, method: bool = False) -> Any:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    names = [p.name for p in parameters if p.kind not in _VARIADIC]
    positional = [
        p.name for p in parameters if p.kind.name in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")
    ]
    rest = next((p.name for p in parameters if p.kind.name == "VAR_POSITIONAL"), "")
    more = next((p.name for p in parameters if p.kind.name == "VAR_KEYWORD"), "")
    checks: dict[str, Check] | None = None
    defaults = {p.name: p.default for p in parameters}

    def compiled() -> dict[str, Check]:
        # Late: annotations may name what comes after, or what is imported for them only.
        found = {}
        for parameter in parameters[1:] if method else parameters:
            check = _check_of(_resolved(parameter.annotation, function))
            if check is not None and parameter.name not in but:
                found[parameter.name] = check
        return found

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checks
        if checks is None:
            checks = compiled()
        for name, value in zip(positional, args, strict=False):
            check = checks.get(name)
            if check is not None and value is not defaults[name]:
                check(name, value)
        if rest in checks:
            for value in args[len(positional) :]:
                checks[rest](rest, value)
        for name, value in kwargs.items():
            check = checks.get(name)
            if check is not None and value is not defaults[name]:
                check(name, value)
            elif more in checks and name not in names:
                checks[more](name, value)
        try:
            return function(*args, **kwargs)
        except (OverflowError, ZeroDivisionError, OutOfRange) as error:
            if not _is_ours(error):
                raise
            given = dict.fromkeys((*positional[method : len(args)], *kwargs))
            what = ", ".join(f"`{name}`" for name in given) or "what this object was made with"
            raise OutOfRange(
                f"Numbers became too large or too small to compute with: check {what}."
            ) from error

    return call


def _is_ours(error: BaseException) -> bool:
    """Whether arithmetic failed in this package or below it, not in a function that was passed."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _BELOW


def _resolved(annotation: Any, function: Any) -> Any:
    """What an annotation stands for; Any where that cannot be told."""
    if not isinstance(annotation, str):
        return annotation
    known: dict[str, Any] = {}
    while True:
        try:
            return eval(annotation, function.__globals__, known)  # our own source
        except NameError as error:
            known[str(error.name)] = _for_type_checkers(str(error.name), function)
        except (AttributeError, TypeError):
            return Any


def _for_type_checkers(name: str, function: Any) -> Any:
    """A class that is imported in an ``if TYPE_CHECKING`` block."""
    source = inspect.getsource(sys.modules[function.__module__])
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in ast.walk(block):
                if isinstance(line, ast.ImportFrom) and name in {part.name for part in line.names}:
                    return _Unloaded(name, (), {"module": line.module})
    return Any


def _check_of(kind: Any) -> Check | None:
    """The check of a type; None if anything goes."""
    origin, parts = get_origin(kind), get_args(kind)
    if (origin or kind) in _SIMPLE:
        return _SIMPLE[origin or kind]
    if origin in (Union, types.UnionType):
        return _any_of(parts)
    if origin is Literal:
        return _one_of(parts)
    if origin is typing.Unpack or str(origin) == "typing_extensions.Unpack":
        return _settings(parts[0])
    if origin in (Sequence, list, tuple, Iterable):
        return _row(origin, parts)
    if origin in (Mapping, dict):
        return _instance(Mapping, "a mapping")
    if origin is Callable or kind is Callable:
        return _callable
    if origin is type:
        return _instance(type, "a class")
    if typing.is_typeddict(kind):
        return _instance(Mapping, "a mapping")
    if isinstance(origin or kind, type) and kind not in (Any, object):
        if getattr(kind, "_is_protocol", False):
            return _like(kind)
        return _instance(origin or kind)
    return None


def _number(name: str, value: Any) -> None:
    check_real(name, value)


def _integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer, got {type(value).__name__}.")


def _numbers(name: str, value: Any) -> None:
    """Whatever NumPy makes an array of numbers of."""
    try:
        kind = np.asarray(value).dtype.kind
    except (TypeError, ValueError, RuntimeError):
        kind = "O"
    if kind not in "iuf":
        raise TypeError(f"`{name}` must be numbers, got {type(value).__name__}.")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False, got {type(value).__name__}.")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string, got {type(value).__name__}.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"`{name}` must be valid Unicode, got {value!r}.") from None


def _none(name: str, value: Any) -> None:
    if value is not None:
        raise TypeError(f"`{name}` must be None, got {type(value).__name__}.")


def _callable(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"`{name}` must be callable, got {type(value).__name__}.")


def _path(name: str, value: Any) -> None:
    check_path(name, value)


_SIMPLE: dict[Any, Check] = {
    float: _number,
    int: _integer,
    bool: _flag,
    str: _text,
    None: _none,
    type(None): _none,
    PathLike: _path,
}


def _instance(kind: type, words: str | None = None) -> Check:
    named = {"Tensor": "torch.Tensor"}.get(kind.__name__, kind.__name__)
    article = "an" if named[0] in "AEIOU" else "a"
    name_of_kind = words or f"{article} {named}"

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must be {name_of_kind}, got {type(value).__name__}.")

    return check


def _like(protocol: type) -> Check:
    wanted = [name for name in vars(protocol) if name == "__call__" or not name.startswith("_")]

    def check(name: str, value: Any) -> None:
        if "__call__" in wanted:
            _callable(name, value)
        elif not all(hasattr(value, attribute) for attribute in wanted):
            raise TypeError(
                f"`{name}` must be a {protocol.__name__} (with {', '.join(wanted)}), got "
                f"{type(value).__name__}."
            )

    return check


def _one_of(options: tuple[Any, ...]) -> Check:
    def check(name: str, value: Any) -> None:
        # Which word is meant the function may guess, or say what to use instead.
        if not isinstance(value, str):
            raise ValueError(f"`{name}` must be one of {options}, got {type(value).__name__}.")

    return check


def _any_of(kinds: tuple[Any, ...]) -> Check | None:
    if str in kinds and any(get_origin(kind) is PathLike or kind is PathLike for kind in kinds):
        kinds = tuple(k for k in kinds if k is not str)
    found = [_check_of(kind) for kind in kinds]
    if np.ndarray in kinds:
        return _numbers
    if None in found:
        return None
    checks = [check for check in found if check is not None]

    def check(name: str, value: Any) -> None:
        refusals = []
        for one in checks:
            try:
                return one(name, value)
            except (TypeError, ValueError) as error:
                refusals.append(error)
        # Of the right type but out of range says more than of another type.
        for refusal in refusals:
            if isinstance(refusal, ValueError):
                raise refusal
        words = [str(r).partition(" must be ")[2].rpartition(", got ")[0] for r in refusals]
        raise TypeError(
            f"`{name}` must be {' or '.join(dict.fromkeys(words))}, got {type(value).__name__}."
        )

    return check


def _row(origin: Any, kinds: tuple[Any, ...]) -> Check:
    fixed = origin is tuple and kinds and kinds[-1] is not Ellipsis
    each = [_check_of(kind) for kind in kinds if kind is not Ellipsis]

    def check(name: str, value: Any) -> None:
        if isinstance(value, np.ndarray) or hasattr(value, "requires_grad"):
            wanted = "iuf" if each[:1] == [_number] else "iu" if each[:1] == [_integer] else ""
            if origin is tuple or len(value.shape) != 1 or _kind(value) not in wanted:
                what = "a pair" if fixed and len(each) == 2 else "a sequence"
                raise TypeError(f"`{name}` must be {what}, got {_described(value)}.")
            return
        if origin is Iterable and isinstance(value, Iterable) and not isinstance(value, str):
            return
        is_row = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
        if fixed and len(each) == 2 and (not is_row or len(value) != 2):
            kind = ValueError if is_row else TypeError
            raise kind(f"`{name}` must be a pair, got {_brief(value)}.")
        if not is_row:
            raise TypeError(f"`{name}` must be a sequence, got {type(value).__name__}.")
        if fixed and len(value) != len(each):
            raise ValueError(f"`{name}` must have {len(each)} entries, got {len(value)}.")
        if not each or (isinstance(value, range) and each[0] in (_number, _integer)):
            return
        if isinstance(value, range):
            value = value[:1]
        for position, part in enumerate(value):
            one = each[position if fixed else 0]
            if one is not None:
                one(name, part)

    return check


def _kind(array: Any) -> str:
    """The kind of the entries of an array or tensor, in NumPy's letters."""
    if isinstance(array, np.ndarray):
        return array.dtype.kind
    return "f" if array.is_floating_point() else "i" if str(array.dtype)[6:9] == "int" else "x"


def _brief(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, Sequence) else type(value).__name__


def _described(array: Any) -> str:
    return f"a {type(array).__name__} of shape {tuple(array.shape)} and dtype {array.dtype}"


def _settings(kind: Any) -> Check:
    hints = typing.get_type_hints(kind)
    checks = {name: _check_of(hint) for name, hint in hints.items()}

    def check(name: str, value: Any) -> None:
        one = checks.get(name)
        if one is not None:
            one(name, value)

    return check
