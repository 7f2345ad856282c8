"""Build the package, and try it where nothing else is installed: bare, and with each extra.

    python -m tools.dist

The wheel and the source distribution each get an environment of their own. The environment of an
extra sees that of the wheel, so that only what the extra brings is installed once more.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD, DIST = ROOT / "build", ROOT / "dist"
CHECK = ROOT / "tests" / "installed.py"
#: Extras for those who work on the project.
NOT_FOR_USERS = {"dev", "docs", "notebooks"}


def run(*command: str | Path) -> None:
    """A command whose output is shown if it fails."""
    done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\nFailed: {' '.join(map(str, command))}")


def installed(name: str, package: str, below: Path | None = None) -> Path:
    """The Python of a new environment with a package in it, and perhaps another one below it."""
    folder = BUILD / name
    venv.create(folder, clear=True, with_pip=True)
    python = folder / "bin" / "python"
    if below is not None:
        (site(folder) / "below.pth").write_text(f"{site(below.parent.parent)}\n")
    run(
        *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("-c", ROOT / "constraints.txt", package),
    )
    return python


def site(folder: Path) -> Path:
    """Where an environment has its packages."""
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def main() -> None:
    """Build, and try."""
    BUILD.mkdir(exist_ok=True)
    for old in [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]:
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (wheel,), (source,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    with tarfile.open(source) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    kept = {"tests/conftest.py", "docs/privacy.md", "benchmarks/tables.py", "CHANGELOG.md"}
    assert kept <= names, f"{source.name} lacks {kept - names}, which packagers need to test it."
    print(f"{source.name} ...", flush=True)
    run(installed("source", str(source)), CHECK)
    print(f"{wheel.name} ...", flush=True)
    bare = installed("wheel", str(wheel))
    run(bare, CHECK)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in sorted(set(extras["optional-dependencies"]) - NOT_FOR_USERS):
        print(f"{wheel.name}[{extra}] ...", flush=True)
        run(installed("extra", f"{wheel}[{extra}]", below=bare), CHECK, extra)
    print("All of them work.")


if __name__ == "__main__":
    main()
