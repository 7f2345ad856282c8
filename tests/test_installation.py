"""What is installed: every subpackage works without the extras, and what needs one says which."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

#: What each extra brings, as modules. GPyTorch itself brings scikit-learn.
MODULES = {
    "plots": "matplotlib",
    "frames": "pandas",
    "ax": "ax",
    "dask": "distributed",
    "ray": "ray",
}

BLOCKED = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(MODULES.values())}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Missing())
"""


#: What every subpackage needs is loaded once; each program runs in a fork that has loaded no more.
FORKS = (
    BLOCKED
    + """
import json, os, tempfile, traceback
import botorch, gpytorch, scipy.stats, torch
assert "botorch_dp" not in sys.modules
done = []
for program in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            code = 1
            try:
                exec(program, {"__name__": "__main__"})
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        done.append((os.waitstatus_to_exitcode(status), errors.read()))
print(json.dumps(done))
"""
)


def without_extras(*programs: str) -> list[tuple[int, str]]:
    """The exit code of each program where the extras are missing, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        input=json.dumps([textwrap.dedent(program) for program in programs]),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]


#: Leaves seeds, dtypes, threads, warnings, logging and linear algebra alone.
EVERY_MODULE = """
import importlib, logging, pkgutil, random, warnings
import gpytorch, linear_operator, numpy, torch
import dp_accounting, opacus, opendp.prelude, sklearn
def state():
    return (
        random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist(),
        torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),
        list(warnings.filters), list(logging.getLogger().handlers), logging.getLogger().level,
        linear_operator.settings.cholesky_jitter.value(torch.double),
        gpytorch.settings.fast_pred_var.on(),
    )
before = state()
import botorch_dp
for module in pkgutil.walk_packages(botorch_dp.__path__, "botorch_dp."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for one, other in zip(before, state(), strict=True):
    assert one == other, (str(one)[:200], str(other)[:200])
"""
#: OpenDP is loaded where noise is drawn, and by no import.
NO_SAMPLER = """
import sys, botorch_dp.privacy.mechanisms
assert not any(name.startswith("opendp") for name in sys.modules)
"""
#: Programs that need an extra.
NEEDING = {
    "plots": """
        from botorch_dp.plots import _axes
        _axes(None)
        """,
    "ax": """
        from botorch_dp.acquisition import register_with_ax
        register_with_ax()
        """,
}


def test_without_the_extras_all_is_imported_quietly_and_what_needs_one_names_it() -> None:
    every, sampler, *needing = without_extras(EVERY_MODULE, NO_SAMPLER, *NEEDING.values())
    assert every[0] == 0, every[1]
    assert sampler[0] == 0, sampler[1]
    for extra, (code, said) in zip(NEEDING, needing, strict=True):
        assert code == 1, extra
        last = said.strip().splitlines()[-1]
        assert last.startswith("ModuleNotFoundError: "), last
        assert MODULES[extra] in last and f"pip install '.[{extra}]'" in last


def test_every_extra_that_a_message_names_exists() -> None:
    named = set()
    for file in (ROOT / "botorch_dp").rglob("*.py"):
        text = file.read_text()
        named |= set(re.findall(r"needs_extra\(\s*\"([a-z]+)\"", text))
        named |= set(re.findall(r"botorch_dp\[([a-z]+)\]", text))
    assert named and named <= set(EXTRAS)


def test_the_core_holds_what_every_room_needs_and_no_more() -> None:
    core = {re.split(r"[<>=\[ ]", line)[0] for line in PROJECT["dependencies"]}
    heavy = {"matplotlib", "scikit-learn", "pandas", "ax-platform"}
    assert not core & heavy
    used = set()
    for file in (ROOT / "botorch_dp").rglob("*.py"):
        for line in file.read_text().splitlines():
            found = re.match(r"(?:from|import) ([a-z_0-9]+)", line)
            if found:
                used.add(found[1].replace("_", "-"))
    foreign = {name for name in used if name.replace("-", "_") not in sys.stdlib_module_names}
    assert foreign - {"botorch-dp"} <= core | {"linear-operator"}


def test_the_version_is_the_same_everywhere() -> None:
    from botorch_dp import __version__

    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    released = next(heading for heading in headings if "unreleased" not in heading)
    assert cited is not None
    assert PROJECT["version"] == __version__ == cited[1] == released.split()[0]
