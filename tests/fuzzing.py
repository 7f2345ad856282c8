"""Every public callable, called with anything: a result, or an error that names the argument.

``python -m tests.fuzzing --seconds 900`` finds all that the package exports (functions,
constructors, methods, properties), gives each arguments that work (by the names of parameters),
replaces some of them by junk, and counts what a caller should never see:

* *crash*: an error that is neither a ``TypeError`` nor a ``ValueError`` nor one that the package
  exports (an ``OSError`` may say that there is no such file);
* *nameless*: a refusal that names no argument;
* *NaN*: a result that holds NaN although no argument does;
* *hang*: no answer in time.

What is new is called too, with arguments that its parameters' names suggest. A callable whose
working call fails is listed, so that it gets an example of its own here.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import io
import json
import math
import os
import pkgutil
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import botorch_dp
from botorch_dp.errors import AlreadyReleased

#: Not called: they talk to strangers on the network, start a cluster, or wait for ever by design.
EXCEPT = {
    "botorch_dp.pareto.RayExecutor",
    "botorch_dp.datasets.download",
    "botorch_dp.datasets.adult",
    "botorch_dp.datasets.mnist",
    "botorch_dp.tasks.adult_logistic_adam",
    "botorch_dp.tasks.adult_svm_sgd",
    "botorch_dp.tasks.adult_logistic_sgd",
    "botorch_dp.tasks.mnist_mlp1_sgd",
    "botorch_dp.tasks.mnist_mlp2_sgd",
    "botorch_dp.tasks.private_logistic_regression",
}
#: Attributes whose documentation says that they may be NaN.
MAY_BE_NAN = {
    "seconds",
    "accuracy",
    "test_accuracy",
    "utility",
    "loss",
    "epsilon",
    "error",
    "lowest_error",
    "highest_error",
}
#: What makes a call wait for as long as it says.
WAITS = {"at_least"}
#: What some objects always refuse: that of a curve.
WITHOUT = {"botorch_dp.tasks.SparseVectorProblem.at"}
#: Nobody answers these here.
UNREACHABLE = {"CuratorClient.": ConnectionError, "FileCurator.": TimeoutError}
ADDRESS_SPACE = 16 * 2**30


# What there is


@dataclass(frozen=True)
class Target:
    """Something that can be called; a method or property if ``owner`` says of which class."""

    name: str
    parameters: tuple[inspect.Parameter, ...]
    owner: type | None = None
    is_property: bool = False

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def function(self) -> Callable[..., Any]:
        """The callable, of a fresh object if it is a method."""
        if self.owner is None:
            module, _, name = self.name.rpartition(".")
            return getattr(importlib.import_module(module), name)
        thing = instance(self.owner)
        return (
            (lambda: getattr(thing, self.last)) if self.is_property else getattr(thing, self.last)
        )


def rooms() -> list[str]:
    found = [m.name for m in pkgutil.iter_modules(botorch_dp.__path__)]
    public = [f"botorch_dp.{name}" for name in found if not name.startswith("_")]
    return ["botorch_dp", *public, "botorch_dp.training.estimators"]


def exported(module_name: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None)
    if names is None:
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module_name]
        names = [name for name in own if not name.startswith("_")]
    for name in names:
        yield name, getattr(module, name)


@cache
def targets() -> list[Target]:
    """All public callables, each once."""
    found: dict[int, Target] = {}
    for module in rooms():
        if module == "botorch_dp.cli":
            continue  # takes words from a terminal
        for name, value in exported(module):
            place = f"{module}.{name}"
            if not callable(value) or id(value) in found or place in EXCEPT:
                continue
            is_class = isinstance(value, type)
            if is_class and issubclass(value, BaseException | enum.Enum | dict):
                continue
            if is_class and (inspect.isabstract(value) or getattr(value, "_is_protocol", False)):
                continue
            found[id(value)] = Target(place, _parameters(value))
            if is_class:
                for method in _methods(place, value):
                    found[id(method)] = method
    return list(found.values())


def _parameters(function: Any) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function).parameters.values())


def _methods(place: str, owner: type) -> Iterator[Target]:
    for name in dir(owner):
        if name.startswith("_") and name != "__call__":
            continue
        if re.fullmatch(r"set_\w+_request", name):
            continue  # scikit-learn's own, for its metadata routing
        home = next((c for c in owner.__mro__ if name in vars(c)), None)
        if home is None or not home.__module__.startswith("botorch_dp"):
            continue
        raw = inspect.getattr_static(owner, name)
        if isinstance(raw, property) or type(raw).__name__ == "cached_property":
            yield Target(f"{place}.{name}", (), owner, is_property=True)
        elif callable(getattr(owner, name)):
            parameters = _parameters(getattr(owner, name))
            bound = isinstance(raw, staticmethod | classmethod)
            yield Target(f"{place}.{name}", parameters if bound else parameters[1:], owner)


# What works


def example(target: Target, name: str) -> Any:
    """A value that works for a parameter."""
    from tests import fuzzing_examples

    parts = target.name.split(".")
    for key in (f"{'.'.join(parts[-2:])}.{name}", f"{parts[-1]}.{name}", name):
        if key in fuzzing_examples.VALUES:
            return fuzzing_examples.VALUES[key]()
    raise LookupError(f"nothing is known for `{name}` of {target.name}")


def working_call(target: Target) -> dict[str, Any]:
    """Arguments by name that work; what has a default keeps it, unless an example says more."""
    from tests import fuzzing_examples

    chosen = {}
    for parameter in target.parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            chosen[parameter.name] = example(target, parameter.name)
        elif parameter.kind is parameter.VAR_KEYWORD:
            more = fuzzing_examples.MORE.get(target.last, {})
            chosen.update({name: make() for name, make in more.items()})
        elif parameter.default is parameter.empty:
            try:
                chosen[parameter.name] = example(target, parameter.name)
            except LookupError:
                chosen[parameter.name] = _by_annotation(parameter)
        else:
            for parts in (2, 1):
                key = ".".join([*target.name.split(".")[-parts:], parameter.name])
                if key in fuzzing_examples.VALUES:
                    chosen[parameter.name] = fuzzing_examples.VALUES[key]()
                    break
    return chosen


def _by_annotation(parameter: inspect.Parameter) -> Any:
    """For names that are new."""
    kinds = {
        "float": 0.5,
        "int": 2,
        "str": "word",
        "bool": False,
        "Tensor": torch.rand(6, 2).double(),
    }
    return kinds.get(str(parameter.annotation).partition(" ")[0])


def instance(owner: type) -> Any:
    """An object of a public class."""
    from tests import fuzzing_examples

    if owner.__name__ in fuzzing_examples.OBJECTS:
        return fuzzing_examples.OBJECTS[owner.__name__]()
    place = _constructor(owner)
    return call(place, owner, working_call(place))


@cache
def _constructor(owner: type) -> Target:
    return next(t for t in targets() if t.owner is None and t.function() is owner)


def call(target: Target, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    given = dict(arguments)
    args: list[Any] = []
    for parameter in target.parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(given.pop(parameter.name))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            rest = given.pop(parameter.name, ())
            # What precedes them can then be given by position only.
            before = [p.name for p in target.parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            args += [given.pop(name) for name in before if name in given]
            args += rest if isinstance(rest, tuple) else [rest]
    return function(*args, **given)


# Junk


def junk_values() -> list[Callable[[], Any]]:
    """Makers of values that somebody will pass one day."""
    endless: list[Any] = []
    endless.append(endless)
    plain = [
        None, True, False, 0, 1, -1, 2, 0.0, -0.5, 1e-320, 1e308, -1e308, math.nan, math.inf,
        -math.inf, bytearray(2),
        10**12, -(10**12), 2**63, 10**400, -(10**400), 1 + 2j, Fraction(1, 3), Decimal("0.5"),
        "", "1", "word", "\0", "\ud800", "x" * 5000, "/no/such/folder/file", ".", b"bytes",
        (), [], {}, set(), [1], ["a"], (math.nan, math.nan), (0.0, math.inf), (1, 0),
        (1.0, 1.0, 1.0),
        {"a": 1}, {1: 2}, endless, object(), int, float, len, Ellipsis, NotImplemented,
        np.float32(0.5), np.int64(3), np.array(1.0), np.array([1.0, math.nan]), np.zeros((0, 2)),
        np.array(["a"]), np.array([None, object()]), np.datetime64("2020-01-01"), Path("a path"),
        ValueError("an error"), range(3), range(10**12), (x for x in ()), torch.float16,
        torch.device("cpu"),
    ]  # fmt: skip
    tensors: list[Callable[[], Any]] = [
        lambda: torch.tensor(0.5),
        lambda: torch.zeros(0),
        lambda: torch.zeros(0, 2).double(),
        lambda: torch.tensor([math.nan]),
        lambda: torch.full((6, 2), math.nan).double(),
        lambda: torch.full((6, 2), math.inf).double(),
        lambda: torch.full((6, 2), 1e308, dtype=torch.double),
        lambda: torch.rand(3).double(),
        lambda: torch.rand(6, 2),
        lambda: torch.rand(6, 2).half(),
        lambda: torch.rand(6, 2).bfloat16(),
        lambda: torch.rand(6, 2).double().requires_grad_(),
        lambda: torch.rand(5, 3).double(),
        lambda: torch.rand(2, 6, 2).double(),
        lambda: torch.zeros(6, 2).double(),
        lambda: torch.ones(6, 2, dtype=torch.long),
        lambda: torch.ones(6, dtype=torch.bool),
        lambda: torch.ones(6, 2, dtype=torch.complex128),
        lambda: torch.rand(6, 2).double().to_sparse(),
    ]
    functions: list[Callable[[], Any]] = [
        lambda: lambda *_, **__: None,
        lambda: lambda *_, **__: "word",
        lambda: lambda *_, **__: math.nan,
        lambda: lambda *_, **__: torch.zeros(0),
        lambda: lambda *_, **__: torch.full((6, 2), math.nan).double(),
        lambda: lambda *_, **__: 10**400,
    ]
    return [*((lambda value=value: value) for value in plain), *tensors, *functions]


def calls(target: Target) -> st.SearchStrategy[dict[str, Callable[[], Any]]]:
    """Which arguments to replace, each by a maker of junk."""
    makers = junk_values()
    names = [p.name for p in target.parameters if p.kind is not p.VAR_KEYWORD]
    names = [name for name in names if name not in WAITS]
    if "args" in names:
        names.remove("args")  # of a decorator of BoTorch's
    if any(p.kind is p.VAR_KEYWORD for p in target.parameters):
        from tests import fuzzing_examples

        names += list(fuzzing_examples.MORE.get(target.last, {})) or ["no_such_argument"]
    drawn = st.one_of(
        st.floats(),
        # Sizes in between are work that somebody may want.
        st.integers(-300, 300) | st.integers(min_value=10**10) | st.integers(max_value=-(10**10)),
        st.text(max_size=20),
        st.lists(st.floats(), max_size=4),
        st.tuples(st.floats(), st.floats()),
        st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
        st.binary(max_size=8),
    ).map(lambda value: lambda: value)
    # Mostly one at a time: what comes first hides what comes later.
    junk = st.one_of(st.sampled_from(makers), st.sampled_from(makers), drawn)
    if not names:
        return st.just({})
    return st.one_of(
        st.dictionaries(st.sampled_from(names), junk, min_size=1, max_size=1),
        st.dictionaries(st.sampled_from(names), junk, min_size=1, max_size=1),
        st.dictionaries(st.sampled_from(names), junk, min_size=1, max_size=max(1, len(names))),
    )


# The command line


#: Words of one that follow each other and work; each may be replaced.
def commands() -> dict[str, list[str]]:
    from tests import fuzzing_examples

    task = ["tests.pareto.toy:problem"]
    lots = ["--records", "1000", "--lot", "50", "--epochs", "2", "--delta", "1e-5"]
    ready = ["adult_logistic_sgd", "--data", "breast_cancer", "--epsilon", "8", "--delta", "1e-2"]
    study, table = fuzzing_examples.study_file(), fuzzing_examples.table_file()
    return {
        "tasks": ["--json"],
        "pareto": [*task, "--trials", "2", "--acquisition", "random", "--seed", "1", "--quiet"],
        "recommend": [*task, "--storage", study, "--epsilon", "1"],
        "report": [study, "--csv", "trials.csv"],
        "dashboard": [study, "--port", "8766"],
        "ledger": ["show", fuzzing_examples.ledger_file(), "--json"],
        "audit": ["laplace", "--samples", "100"],
        "calibrate": ["dp-sgd", "--epsilon", "1", *lots],
        "epsilon": ["dp-sgd", "--noise", "1", *lots],
        "fit": [*ready, "--trials", "2", "--test-records", "public", "--plan"],
        "curator": [table, "--evaluate", table, "--state", "state", "--epsilon", "1", *lots[-2:]],
        "modeler": ["nobody", "--steps", "2", "--checkpoint", "search"],
    }


WORDS = ["", " ", "-", "--", "-1", "0", "1", "0.5", "1e3", "1e999", "nan", "inf", "-inf", "word"]
WORDS += [
    str(10**30),
    "x" * 5000,
    "\udcff",
    "/no/such/folder/file",
    ".",
    "--json",
    "--no-such",
    "a:b",
]
WORDS += ["os:getcwd", "os:nothing", ":", "é", "--epsilon=1", "--help", "1_0", "0x10", "--trials"]


def judged_command(words: Sequence[str], patience: float) -> tuple[str, str]:
    """One command: its verdict, and what came."""
    from botorch_dp.cli import main

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", e) for e in ("strict", "backslashreplace")]
    limit = resource.getrlimit(resource.RLIMIT_AS)
    signal.setitimer(signal.ITIMER_PROF, patience, 1.0)
    signal.setitimer(signal.ITIMER_REAL, 10 * patience, 1.0)
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            try:
                code = main(list(words))
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 99
        for stream in streams:
            stream.flush()
    except HangError as error:
        _disarm()
        return "hang", _place(error)
    except (Exception, SystemExit) as error:
        return "crash", f"{type(error).__name__}: {str(error)[:160]} [{_place(error)}]"
    finally:
        _disarm()
        resource.setrlimit(resource.RLIMIT_AS, limit)
    said = streams[1].buffer.getvalue().decode()
    if code not in (0, 1, 2):
        return "crash", f"exit code {code}"
    if code == 0 or (code == 1 and words[0] == "audit" and not said):  # refuted, or not enough
        return "result", ""
    message = said.rpartition("error: ")[2]
    known = re.search(r"--[a-z]+|`|\b(arguments?|[A-Z]{4,})\b", message)
    quoted = any(part in message for word in words for part in (repr(word)[1:-1], *word.split()))
    named = "error: " in said and (known or quoted)
    return ("refusal", "") if named else ("nameless", f"exit code {code}: {message[:160]} [cli]")


# Judging


class HangError(BaseException):
    """Raised by the alarm; nothing that is called catches it."""


@dataclass
class Report:
    """What was called, and what a caller should never have seen."""

    calls: Counter[str] = field(default_factory=Counter)
    #: What kind, which callable, which error at which place, and one call that shows it.
    failures: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    no_example: dict[str, str] = field(default_factory=dict)

    def add(self, target: Target, verdict: str, what: str, shown: str) -> None:
        self.calls[target.name] += 1
        self.counts[verdict] += 1
        if verdict not in ("result", "refusal"):
            kind, place = what.partition(":")[0], what.rpartition("[")[2]
            self.failures.setdefault((verdict, target.name, f"{kind} [{place}"), (what, shown))

    def __str__(self) -> str:
        lines = [
            f"{kind} {name}: {what}\n      {shown}"
            for (kind, name, _), (what, shown) in sorted(self.failures.items())
        ]
        lines += [f"no working call of {name}: {why}" for name, why in self.no_example.items()]
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS)
        return "\n".join([*lines, f"{self.counts.total()} calls of {len(self.calls)}: {counts}"])


KINDS = ("result", "refusal", "crash", "nameless", "NaN", "hang")


def judged(target: Target, replaced: Mapping[str, Callable[[], Any]], patience: float):
    """One call: its verdict, what came, and the call in words."""
    arguments = working_call(target)
    junk = {name: make() for name, make in replaced.items()}
    shown = ", ".join(f"{name}={_short(value)}" for name, value in junk.items())
    arguments.update(junk)
    function = target.function()
    # Processor time, for the machine may be busy; again, for a callback may have caught the first.
    signal.setitimer(signal.ITIMER_PROF, patience, 1.0)
    signal.setitimer(signal.ITIMER_REAL, 10 * patience, 1.0)
    try:
        result = call(target, function, arguments)
        if inspect.isgenerator(result):
            result = next(result, None)
        if isinstance(result, type(None) | int | str):
            return "result", "", shown
        if target.owner is None and isinstance(function, type):
            _touch(result)
        nan = _nan(result)
        if nan is not None and not any(_nan(value) is not None for value in arguments.values()):
            return "NaN", nan, shown
        return "result", "", shown
    except HangError as error:
        _disarm()  # before the next one
        return "hang", _place(error), shown
    except (Exception, SystemExit) as error:
        if traceback.extract_tb(error.__traceback__)[-1].filename.endswith("pareto/toy.py"):
            return "refusal", "", shown  # the caller's own oracle raised it
        own_name = junk.get("name")
        if isinstance(own_name, str) and own_name in str(error):
            return "refusal", "", shown  # what to call the argument was an argument
        return (
            _refusal(target, error),
            f"{type(error).__name__}: {str(error)[:160]} [{_place(error)}]",
            shown,
        )
    finally:
        _disarm()


def _disarm() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _touch(thing: Any) -> None:
    """What a constructor accepted must be usable: read the properties."""
    repr(thing)
    for name in dir(type(thing)):
        if not name.startswith("_") and isinstance(inspect.getattr_static(thing, name), property):
            home = next(c for c in type(thing).__mro__ if name in vars(c))
            if home.__module__.startswith("botorch_dp"):
                # That something is not there yet is an answer.
                with suppress(ValueError):
                    getattr(thing, name)


def _refusal(target: Target, error: BaseException) -> str:
    if isinstance(error, TypeError | ValueError):
        public = isinstance(error, _public_errors()) and type(error).__name__ != "PrivacyError"
        return "refusal" if public or _names_argument(target, str(error)) else "nameless"
    if isinstance(error, _public_errors()):
        return "refusal"
    if isinstance(error, AssertionError) and "Expected X" in str(error):
        return "refusal"  # a decorator of BoTorch's, with the shape that it wants
    if isinstance(error, OSError) and error.filename is not None:
        return "refusal"
    if any(kind in target.name and type(error) is what for kind, what in UNREACHABLE.items()):
        return "refusal"
    return "crash"


def _names_argument(target: Target, message: str) -> bool:
    from tests import fuzzing_examples

    names = {p.name for p in target.parameters} | set(fuzzing_examples.MORE.get(target.last, {}))
    names |= {"no_such_argument"} if names else set()
    if target.owner is not None and names:  # or one that the object was made with
        names |= set(inspect.signature(target.owner).parameters)
    if not names:  # a property, or a method without arguments: what is wrong is the object
        return True
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message) for name in names)


@cache
def _public_errors() -> tuple[type[Exception], ...]:
    own = [
        value
        for room in rooms()
        if room != "botorch_dp.cli"
        for _, value in exported(room)
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    return (*own, AlreadyReleased, UnsupportedError)


def _nan(value: Any, depth: int = 4) -> str | None:
    """Where a value holds NaN."""
    if depth == 0 or isinstance(value, str | bytes | type):
        return None
    if isinstance(value, float | np.floating):
        return "NaN" if math.isnan(value) else None
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            floating = value.is_floating_point() and value.layout == torch.strided
            return "a tensor" if floating and bool(torch.isnan(value).any()) else None
    if isinstance(value, np.ndarray):
        return "an array" if value.dtype.kind == "f" and np.isnan(value).any() else None
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, tuple | list) and not isinstance(value, range):
        parts = [(str(k), v) for k, v in enumerate(value)]
    elif dataclasses.is_dataclass(value):
        parts = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    for name, part in parts:
        if name not in MAY_BE_NAN and (found := _nan(part, depth - 1)) is not None:
            return f"{name}: {found}"
    return None


def _short(value: Any) -> str:
    try:
        words = (
            f"tensor{tuple(value.shape)} {value.dtype}" if torch.is_tensor(value) else repr(value)
        )
    except Exception as error:
        words = f"<{type(value).__name__}, {type(error).__name__}>"
    return words if len(words) < 60 else f"{words[:50]}... ({type(value).__name__})"


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "botorch_dp/" in f.filename]
    if not frames:
        return "nowhere"
    last = next((f for f in reversed(frames) if f.name != "call"), frames[-1])
    return f"{last.filename.rpartition('botorch_dp/')[2]}:{last.lineno}"


# Running


@contextmanager
def alarms() -> Iterator[None]:
    """Let a call that takes too long end in a :class:`HangError`."""

    def late(*_: object) -> None:
        raise HangError

    before = {kind: signal.signal(kind, late) for kind in (signal.SIGALRM, signal.SIGPROF)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def fuzz(
    *,
    examples: int,
    chosen: str = "",
    number: int = 0,
    seconds: float = math.inf,
    patience: float = 10.0,
) -> Report:
    """Call everything ``examples`` times, in a folder of its own."""
    import uvicorn

    report, before = Report(), Path.cwd()
    end = time.monotonic() + seconds
    served, served_too = uvicorn.Server.run, uvicorn.run
    # They would wait for ever.
    uvicorn.Server.run = lambda self, **_: None
    uvicorn.run = lambda *_, **__: None
    os.environ.setdefault("BOTORCH_DP_TOKEN", "a-long-enough-shared-secret")
    with tempfile.TemporaryDirectory() as folder, alarms(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            # In another order for each seed: time may run out.
            for target in random.Random(number).sample(targets(), len(targets())):
                if chosen in target.name and time.monotonic() < end:
                    _fuzz_one(report, target, examples, number, end, patience)
            for command, working in commands().items():
                if chosen in f"botorch-dp {command}":
                    _fuzz_command(report, command, working, examples, number, end)
        finally:
            uvicorn.Server.run = served
            uvicorn.run = served_too
            os.chdir(before)
    return report


def _fuzz_one(
    report: Report, target: Target, examples: int, number: int, end: float, patience: float
) -> None:
    print(target.name, file=sys.stderr, flush=True)  # what ran last, if all of it is killed
    try:
        verdict, what, _ = judged(target, {}, 60.0)
    except Exception as error:
        report.no_example[target.name] = f"{type(error).__name__}: {str(error)[:200]}"
        if target.owner is not None:
            return  # no object to call it on
        verdict = "result"
    reached = verdict == "result" or any(kind in target.name for kind in UNREACHABLE)
    reached |= verdict == "refusal" and what.startswith("PrivacyError")  # of a class, always
    reached |= target.name in WITHOUT
    if not reached and (verdict != "refusal" or target.parameters):
        report.no_example[target.name] = f"{verdict}: {what}"
    if target.is_property or not target.parameters:
        report.add(target, verdict, what, "")
        return

    @seed(zlib.crc32(f"{number} {target.name}".encode()))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(target))
    def run(replaced: dict[str, Callable[[], Any]]) -> None:
        if time.monotonic() < end:
            report.add(target, *judged(target, replaced, patience))

    run()


def _fuzz_command(
    report: Report, command: str, working: list[str], examples: int, number: int, end: float
) -> None:
    name = f"botorch-dp {command}"
    target = Target(name, ())
    print(name, file=sys.stderr, flush=True)
    verdict, what = judged_command([command, *working], 60.0)
    if verdict != "result" and command != "modeler":  # nobody answers it
        report.no_example[name] = f"{verdict}: {what}"
    junk = st.sampled_from(WORDS) | st.text(st.characters(exclude_characters="\0"), max_size=8)

    @seed(zlib.crc32(f"{number} {name}".encode()))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.dictionaries(st.integers(0, len(working)), junk, min_size=1, max_size=2))
    def run(replaced: dict[int, str]) -> None:
        if time.monotonic() < end:
            words = [replaced.get(place, word) for place, word in enumerate([*working, ""])]
            words = words if len(working) in replaced else words[:-1]
            verdict, what = judged_command([command, *words], 20.0)
            report.add(target, verdict, what, repr(words)[:300])

    run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="calls of each callable")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the names to call")
    parser.add_argument("--json", help="where to write the counts")
    options = parser.parse_args()
    # A request for more memory than this fails here as it would on a small machine.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    report = fuzz(
        examples=options.examples, chosen=options.only, number=options.seed, seconds=options.seconds
    )
    print(report)
    if options.json:
        counts = {kind: report.counts[kind] for kind in KINDS}
        counts |= {"callables": len(report.calls), "without an example": len(report.no_example)}
        Path(options.json).write_text(json.dumps(counts))
    return 1 if report.failures or report.no_example else 0


if __name__ == "__main__":
    sys.exit(main())
