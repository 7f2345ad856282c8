"""Type checkers on a user's script, beside the wheel as users install it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "typed.py"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as its wheel has it, and nothing else of the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "botorch_dp", folder / "source" / "botorch_dp")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    subprocess.run([*command, "--no-build-isolation", "./source"], check=True, cwd=folder)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as content:
        content.extractall(folder / "site")
    return folder / "site"


#: (arguments, a mistake that must be found in the script)
CHECKERS = {
    "mypy": ["mypy", "--strict", "--follow-imports=silent", "--python-executable", sys.executable],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_script_has_no_errors_and_mistakes_are_found(
    checker: str, wheel: Path, tmp_path: Path
) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"needs {checker}, which `make peers` installs")
    source = SCRIPT.read_text()
    (tmp_path / "right.py").write_text(source)
    wrong = source.replace("trials=5).run()", "trial=5).run()").replace(
        "PrivacyBudget(1.0, 1e-6)", 'PrivacyBudget("1.0", 1e-6)'
    )
    (tmp_path / "wrong.py").write_text(wrong)
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{wheel}"]}}')
    found, paths = dict[str, str](), {"MYPYPATH": str(wheel), "PYTHONPATH": ""}
    for name in ("right", "wrong"):
        done = subprocess.run(
            [sys.executable, "-m", *CHECKERS[checker], f"{name}.py"], cwd=tmp_path,
            capture_output=True, text=True, env={**os.environ, **paths},
        )  # fmt: skip
        found[name] = done.stdout + done.stderr
    last = found["right"].strip().splitlines()[-1]
    assert "no issues found" in last or last.startswith("0 errors"), found["right"]
    assert found["wrong"].count("trial") >= 1 and 'PrivacyBudget("1.0"' in wrong
    assert "2 errors" in found["wrong"], found["wrong"]
