"""Argument checks of all rooms: each names the argument, what it was given and the fix.

What an annotation says, no function need repeat: :func:`checked` holds every argument against its
annotation before anything else happens, and refuses another type (or a word that is not among those
of a ``Literal``). Ranges, shapes and what else a type does not say are held by the ``check_...``
functions, which each function calls for itself.

Only public parameters pass through here; the values of a sensitive tensor never reach a message.
NumPy and torch are imported late: the ledger does without torch, a wrong command line without both.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

if TYPE_CHECKING:
    from torch import Tensor

#: The most that a number alone may ask for; what the caller holds in memory may be larger.
LARGEST_BYTES = 2**33
#: A sequence of more entries than this is a slip.
LARGEST_ROW = 10**7
LARGEST_COUNT = 10**9


# --- Ranges, shapes and paths: what a type does not say. ---


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Around an import that only some users need: an error says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {error.name}, which is not installed: "
            f"`pip install 'botorch_dp[{extra}]'`.",
            name=error.name,
        ) from error


def did_you_mean(word: object, choices: Iterable[object]) -> str:
    """`` Did you mean 'pareto'?``, or nothing where no choice is near.

    Example:
        >>> did_you_mean("pareot", ["tasks", "pareto"])
        " Did you mean 'pareto'?"
    """
    near = difflib.get_close_matches(str(word), [str(choice) for choice in choices], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_choice(name: str, value: object, choices: tuple[str, ...], *, otherwise: str = "") -> str:
    """Return ``value``, or raise if it is none of the choices.

    Args:
        name: The argument's name, for the message.
        value: What the caller was given.
        choices: The names that are allowed.
        otherwise: What else is allowed, in words.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"`{name}` must be one of {choices}{otherwise}, got {value!r}."
            f"{did_you_mean(value, choices)}"
        )
    return value


def check_real(name: str, value: object) -> float:
    """Return ``value`` as a float, which may be infinite or NaN, or raise if it is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a real number, got {type(value).__name__}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"`{name}` must be at most 1.8e308 in size, got more.") from None


def check_finite(name: str, value: object) -> float:
    """Return ``value`` as a float, or raise if it is not a finite real number."""
    number = check_real(name, value)
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {number}.")
    return number


def check_positive(name: str, value: object, *, allow_inf: bool = False) -> float:
    """Return ``value`` as a float, or raise if it is not positive (and finite unless allowed)."""
    number = check_real(name, value)
    if not number > 0 or (math.isinf(number) and not allow_inf):
        kind = "positive" if allow_inf else "positive and finite"
        raise ValueError(f"`{name}` must be {kind}, got {number}.")
    return number


def check_nonnegative(name: str, value: object) -> float:
    """Return ``value`` as a float, or raise if it is negative or not finite."""
    number = check_finite(name, value)
    if number < 0:
        raise ValueError(f"`{name}` must be at least 0, got {number}.")
    return number


def check_delta(name: str, value: object, *, allow_zero: bool = False) -> float:
    """Return ``value`` as a float, or raise if it is not a failure probability in (0, 1)."""
    number = check_real(name, value)
    if not (0 < number < 1 or (allow_zero and number == 0)):
        bracket = "[0, 1)" if allow_zero else "(0, 1)"
        raise ValueError(f"`{name}` must lie in {bracket}, got {number}.")
    return number


def check_integer(
    name: str, value: object, *, at_least: int = 1, at_most: int | None = None
) -> int:
    """Return ``value`` as an int, or raise if it is not an integer within the limits."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer, got {type(value).__name__}.")
    number = int(value)
    if number < at_least or (at_most is not None and number > at_most):
        limits = f"at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise ValueError(f"`{name}` must be {limits}, got {shown(number)}.")
    return number


def shown(number: int) -> str:
    """An integer for a message: Python refuses to write down very long ones."""
    return str(number) if abs(number) < 10**24 else f"one of {number.bit_length()} bits"


def check_count(name: str, value: object, *, at_least: int = 1) -> int:
    """As :func:`check_integer`, for what is done one after the other: at most a billion."""
    number = check_integer(name, value, at_least=at_least)
    if number > LARGEST_COUNT:
        raise ValueError(
            f"`{name}` = {shown(number)} would never end: ask for at most {LARGEST_COUNT:,}."
        )
    return number


def check_size(name: str, value: int, size: int) -> None:
    """Raise if an argument asks for arrays of ``size`` bytes that no machine would hold."""
    if size > LARGEST_BYTES:
        raise ValueError(
            f"`{name}` = {shown(value)} asks for arrays of {size / 2**30:.3g} GiB, more than "
            f"{LARGEST_BYTES / 2**30:g} GiB: ask for less."
        )


def check_interval(name: str, value: object) -> tuple[float, float]:
    """Return ``value`` as ``(low, high)``, or raise if it is no finite interval with low < high."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"`{name}` must be a pair (low, high), got {value!r}.")
    low, high = (check_finite(name, end) for end in value)
    if not low < high:
        raise ValueError(f"`{name}` needs low < high, got ({low}, {high}).")
    return low, high


def check_path(name: str, value: object) -> str | os.PathLike[str]:
    """Return ``value``, or raise if no file can have it as its path."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"`{name}` must be a path, got {type(value).__name__}.")
    try:
        written = os.fsencode(value)
    except UnicodeError:
        written = b"\0"
    if not written or b"\0" in written:
        raise ValueError(f"`{name}` must be a path without null characters, got {value!r}.")
    return value


def check_tensor(
    name: str, value: object, *, shape: tuple[int | str, ...] | None = None, finite: bool = True
) -> Tensor:
    """Return ``value``, or raise if it is not a floating-point tensor of the given shape.

    Args:
        name: The argument's name, for the message.
        value: What the caller was given.
        shape: Expected sizes; a name such as ``"d"`` stands for any size of at least 1.
        finite: Whether to refuse NaN and infinities. Only for public tensors and for inputs of a
            mechanism as a whole: an error must never depend on a single record.
    """
    import torch  # imported late: the ledger and the accountant do without it

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(value).__name__}.")
    if not value.is_floating_point():
        raise TypeError(
            f"`{name}` must be a floating-point tensor, got {value.dtype}; call `.double()` on it."
        )
    if value.layout != torch.strided:
        raise TypeError(f"`{name}` must be a dense tensor, got {value.layout}; call `.to_dense()`.")
    if shape is not None:
        matches = value.dim() == len(shape) and all(
            size == want if isinstance(want, int) else size >= 1
            for size, want in zip(value.shape, shape, strict=True)
        )
        if not matches:
            wanted = " x ".join(map(str, shape))
            raise ValueError(f"`{name}` must have shape {wanted}, got {tuple(value.shape)}.")
    if finite and not bool(torch.isfinite(value).all()):
        raise ValueError(f"`{name}` must be finite, but holds NaN or infinite entries.")
    return value


# --- Annotations: what a type says. ---

F = TypeVar("F", bound=Callable[..., Any])
#: Raises if a value under a name is not what it should be.
Check = Callable[[str, Any], object]

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
    """Decorator of a public function, or of a class: its constructor, public methods, properties.

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
        if isinstance(member, property) and member.fget is not None:
            # Without arguments, but arithmetic may fail for what the object was made with.
            fget = _wrapped(member.fget, but, method=True)
            setattr(target, name, property(fget, member.fset, member.fdel, member.__doc__))
            continue
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
            elif name not in names:
                # Settings know their names; other keyword arguments may have any.
                known = getattr(checks.get(more), "names", None) if more else ()
                if known is not None and name not in known:
                    raise TypeError(
                        f"{function.__qualname__.removesuffix('.__init__')}() has no argument "
                        f"{name!r}.{did_you_mean(name, [*names, *known])}"
                    )
                if more in checks:
                    checks[more](name, value)
        try:
            return function(*args, **kwargs)
        except (OverflowError, ZeroDivisionError, ValueError) as error:
            # Of the functions of `math`, which name nothing, and nothing else.
            arithmetic = not isinstance(error, ValueError) or str(error) == "math domain error"
            if not (isinstance(error, OutOfRange) or (arithmetic and _is_ours(error))):
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
            # Our own source; a cached function hides it.
            return eval(annotation, inspect.unwrap(function).__globals__, known)
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
    if getattr(origin or kind, "__name__", "") == "ndarray":
        return _array(parts)
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


def _integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer, got {type(value).__name__}.")


def check_reals(name: str, value: Any) -> None:
    """Whatever NumPy makes an array of numbers of."""
    import numpy as np

    try:
        kind = np.asarray(value).dtype.kind
    except (TypeError, ValueError, RuntimeError, MemoryError):
        kind = "O"
    if kind not in "iuf":
        raise TypeError(f"`{name}` must be numbers, got {type(value).__name__}.")


def _array(parts: tuple[Any, ...]) -> Check:
    """The check of ``NDArray[dtype]``; of a bare ``ndarray``, whatever its numbers are."""
    import numpy as np

    wanted = get_args(parts[1])[0] if len(parts) == 2 else Any
    real = isinstance(wanted, type) and issubclass(wanted, np.floating | np.integer)

    def check(name: str, value: Any) -> None:
        is_array = isinstance(value, np.ndarray)
        if not is_array or value.dtype.kind not in ("iuf" if real else "iufb"):
            found = value.dtype if is_array else type(value).__name__
            raise TypeError(f"`{name}` must be a NumPy array of numbers, got {found}.")

    return check if wanted is Any or real else _instance(np.ndarray)


def _flag(name: str, value: Any) -> None:
    import numpy as np

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


_SIMPLE: dict[Any, Check] = {
    float: check_real,
    int: _integer,
    bool: _flag,
    str: _text,
    None: _none,
    type(None): _none,
    PathLike: check_path,
}


def _instance(kind: type, words: str | None = None) -> Check:
    named = {"Tensor": "torch.Tensor"}.get(kind.__name__, kind.__name__)
    article = "an" if named[0] in "AEIOU" else "a"
    name_of_kind = words or f"{article} {named}"

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must be {name_of_kind}, got {type(value).__name__}.")
        layout = getattr(value, "layout", None) if kind.__name__ == "Tensor" else None
        if layout is not None and str(layout) != "torch.strided":
            raise TypeError(f"`{name}` must be a dense tensor, got {layout}.")

    if kind.__name__ != "Tensor":
        check.suffices = kind  # type: ignore[attr-defined]  # of an entry, to be this
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
    import numpy as np

    if str in kinds and any(get_origin(kind) is PathLike or kind is PathLike for kind in kinds):
        kinds = tuple(k for k in kinds if k is not str)
    found = [_check_of(kind) for kind in kinds]
    if np.ndarray in kinds:
        return check_reals
    if None in found:
        return None
    checks = [check for check in found if check is not None]

    def check(name: str, value: Any) -> None:
        refusals = []
        for one in checks:
            try:
                one(name, value)
                return
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
    import numpy as np

    fixed = origin is tuple and kinds and kinds[-1] is not Ellipsis
    each = [_check_of(kind) for kind in kinds if kind is not Ellipsis]

    def check(name: str, value: Any) -> None:
        if isinstance(value, np.ndarray) or hasattr(value, "requires_grad"):
            wanted = "iuf" if each[:1] == [check_real] else "iu" if each[:1] == [_integer] else ""
            if origin is tuple or len(value.shape) != 1 or _kind(value) not in wanted:
                what = "a pair" if fixed and len(each) == 2 else "a sequence"
                raise TypeError(f"`{name}` must be {what}, got {_described(value)}.")
            return
        if isinstance(value, range) and value[LARGEST_ROW:]:
            raise ValueError(f"`{name}` must have at most {LARGEST_ROW:,} entries, got {value!r}.")
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
        if not each or (isinstance(value, range) and each[0] in (check_real, _integer)):
            return
        if isinstance(value, range):
            value = value[:1]
        elif not fixed and set(map(type, value)) == {getattr(each[0], "suffices", None)}:
            return
        for position, part in enumerate(value):
            one = each[position if fixed else 0]
            if one is not None:
                one(name, part)

    return check


def _kind(array: Any) -> str:
    """The kind of the entries of an array or tensor, in NumPy's letters."""
    if not hasattr(array, "requires_grad"):
        return str(array.dtype.kind)
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

    check.names = frozenset(hints)  # type: ignore[attr-defined]
    return check
