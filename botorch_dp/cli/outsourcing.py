"""``curator`` and ``modeler``: the two programs of an outsourced search."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch_dp.cli.arguments import (
    TOKEN_VARIABLE,
    check_extra,
    check_folder,
    count,
    nonnegative,
    positive,
    probability,
    whole,
)
from botorch_dp.cli.receipts import write_receipt

if TYPE_CHECKING:
    from torch import Tensor

    from botorch_dp.outsourced import GaussianNoiseCurator


def add_commands(commands: Any) -> None:
    """Add the commands of this module to the command line."""
    curator = commands.add_parser(
        "curator",
        help="hold the rows and answer a modeler over HTTP",
        description="Release the rows once with Gaussian noise and serve them, and answers by row "
        f"index, on the loopback interface. The shared token is read from {TOKEN_VARIABLE} or from "
        "--token-file. Started again with the same --state, it serves the same released rows, "
        "repeats its answers and goes on counting queries.",
    )
    curator.add_argument("rows", type=Path, help="sensitive rows: .npy, .csv, or .npz with array X")
    curator.add_argument(
        "--evaluate",
        required=True,
        help="what is measured: a file of one value a row (.npy, .csv), or MODULE:FUNCTION of a "
        "row index",
    )
    curator.add_argument("--state", type=Path, required=True, help="folder kept between starts")
    curator.add_argument("--epsilon", type=positive, required=True)
    curator.add_argument("--delta", type=probability, required=True)
    curator.add_argument(
        "--row-distance",
        type=positive,
        required=True,
        help="how far one row may move (Euclidean, in the units of the rows): the released rows "
        "hide movements up to this distance",
    )
    curator.add_argument("--projection-dim", type=count, help="project to so many columns first")
    curator.add_argument(
        "--ledger", type=Path, help="existing privacy ledger that the release is charged to"
    )
    curator.add_argument("--max-queries", type=count, help="answer no more than this, ever")
    curator.add_argument("--host", default="127.0.0.1")
    curator.add_argument("--port", type=whole, default=8765)
    curator.add_argument(
        "--token-file", type=Path, help="file that holds the shared token (mode 0600)"
    )
    curator.add_argument("--certfile", type=Path, help="certificate (PEM), to speak HTTPS")
    curator.add_argument("--keyfile", type=Path, help="its key, if it is in a file of its own")
    curator.set_defaults(run=_curator)

    modeler = commands.add_parser(
        "modeler",
        help="search a curator's rows for the best one",
        description="GP-UCB on the rows that a curator released. The shared token is read from "
        f"{TOKEN_VARIABLE} or from --token-file.",
    )
    modeler.add_argument("url", help="where the curator serves, such as http://127.0.0.1:8765")
    modeler.add_argument("--steps", type=count, default=50, help="answers in all (default: 50)")
    modeler.add_argument("--checkpoint", type=Path, help="file from which a search goes on")
    modeler.add_argument(
        "--lengthscale", type=positive, help="of the rows' kernel; learned from answers by default"
    )
    modeler.add_argument(
        "--noise-std", type=nonnegative, default=0.1, help="of the answers, with --lengthscale"
    )
    modeler.add_argument(
        "--delta",
        type=probability,
        default=0.1,
        help="failure probability of the bounds (default: 0.1)",
    )
    modeler.add_argument(
        "--token-file", type=Path, help="file that holds the shared token (mode 0600)"
    )
    modeler.add_argument(
        "--cafile",
        type=Path,
        help="certificate (PEM) of the authority that signed the curator's, if this machine does "
        "not know it",
    )
    modeler.add_argument("--quiet", action="store_true", help="no progress bar")
    modeler.add_argument("--json", action="store_true", help="print all answers for programs")
    modeler.set_defaults(run=_modeler)


def _token(options: argparse.Namespace) -> str:
    if options.token_file is None and not os.environ.get(TOKEN_VARIABLE):
        raise ValueError(
            f"Set {TOKEN_VARIABLE} to the shared token (16 characters or more), or give a "
            "--token-file; it is not an argument because others can read those."
        )
    from botorch_dp.outsourced.credentials import check_token, read_token

    if options.token_file is not None:
        return read_token(options.token_file)
    return check_token(os.environ[TOKEN_VARIABLE], TOKEN_VARIABLE)


def _curator(options: argparse.Namespace) -> int:
    check_extra("service", "starlette", "uvicorn")
    _check_source(options.rows)
    if _is_table(options.evaluate):
        _check_source(Path(options.evaluate))
    if options.ledger is not None and not options.ledger.exists():
        raise ValueError(
            f"There is no ledger at {options.ledger}: create it once, in Python, by "
            "PrivacyLedger(path, PrivacyBudget(epsilon, delta))."
        )
    token = _token(options)
    from botorch_dp.outsourced import serve
    from botorch_dp.outsourced.credentials import check_certificate
    from botorch_dp.outsourced.service import listen

    if options.certfile is not None:
        check_certificate(options.certfile, options.keyfile)
    elif options.keyfile is not None:
        raise ValueError("--keyfile needs a --certfile.")
    listen(options.host, options.port).close()  # an address in use is noticed before the release
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    curator = open_curator(options)
    print(f"{curator.num_rows} rows, {curator.num_queries} queries so far. {curator.promise}")
    print(_noise(curator))
    serve(
        curator,
        token=token,
        host=options.host,
        port=options.port,
        certfile=options.certfile,
        keyfile=options.keyfile,
        ready=lambda url: print(f"Serving on {url} (Ctrl-C ends it)", flush=True),
    )
    return 0


def _noise(curator: GaussianNoiseCurator) -> str:
    """The noise beside the released columns: whether the row distance fits their units."""
    rows = curator.dataset.value
    ranges = rows.max(dim=0).values - rows.min(dim=0).values
    low, high = float(ranges.min()), float(ranges.max())
    return (
        f"Each coordinate has noise of standard deviation {curator.noise_std:.3g}; with it, the "
        f"released columns range over {low:.3g} to {high:.3g}."
    )


def open_curator(options: argparse.Namespace) -> GaussianNoiseCurator:
    """The curator of a state folder; its rows are released once and for all.

    Started again with the same folder and settings, it serves the same rows; other settings are
    refused.
    """
    from botorch_dp.outsourced import GaussianNoiseCurator, save_dataset
    from botorch_dp.privacy import PrivacyLedger

    evaluate, rows = _evaluation(options.evaluate), table(options.rows)
    options.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    charged = nullcontext() if options.ledger is None else PrivacyLedger(options.ledger)
    # Only the release of the rows is charged: the ledger is not held while answers are given.
    with charged as ledger:
        curator = GaussianNoiseCurator(
            rows,
            evaluate,
            epsilon=options.epsilon,
            delta=options.delta,
            row_distance=options.row_distance,
            projection_dim=options.projection_dim,
            ledger=ledger,
            max_queries=options.max_queries,
            log=options.state / "queries.sqlite",
        )
        file = options.state / "dataset.npz"
        save_dataset(file, curator.dataset)
        write_receipt(curator.dataset.receipt(artifact=file, ledger=ledger), beside=file)
    return curator


def _check_source(path: Path) -> None:
    if not path.exists():
        raise ValueError(f"There is no file {path}.")


def _is_table(source: str) -> bool:
    return Path(source).suffix in {".npy", ".csv", ".npz"}


def _evaluation(source: str) -> Callable[[int], float]:
    if _is_table(source):
        values = table(Path(source)).flatten()
        return lambda index: float(values[index])
    module_name, _, name = source.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--evaluate {source!r} is neither a .npy or .csv file nor MODULE:FUNCTION ({error})."
        ) from error
    if not callable(function):
        raise ValueError(f"--evaluate {source!r} is not a function.")
    return function


def table(path: Path) -> Tensor:
    """Numbers of a file as an ``n x d`` tensor; no value appears in an error."""
    import numpy as np
    import torch

    _check_source(path)
    try:
        if path.suffix == ".csv":
            array = np.loadtxt(path, delimiter=",", ndmin=2, skiprows=int(_has_header(path)))
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                array = archive["X"]
        else:
            array = np.load(path, allow_pickle=False)
        if array.dtype.kind not in "biuf" or array.ndim > 2:
            raise ValueError
        array = np.asarray(array, dtype=np.float64)
    except Exception:  # a damaged archive raises whatever the layers below stumble on
        # The reason may quote a sensitive value.
        raise ValueError(
            f"{path} does not hold a table of numbers (.csv, .npy, or .npz with an array X)."
        ) from None
    return torch.from_numpy(array if array.ndim > 1 else array[:, None])


def _has_header(path: Path) -> bool:
    """Whether the first line names columns: no cell of it is a number.

    A line with some numbers in it is a damaged row and no header: it must not be dropped silently.
    """
    with path.open() as file:
        cells = file.readline().strip().split(",")
    return any(cells) and not any(map(_is_number, cells))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return not cell.strip()
    return True


def _modeler(options: argparse.Namespace) -> int:
    check_extra("service", "httpx")
    check_folder("--checkpoint", options.checkpoint)
    token = _token(options)
    from botorch_dp.outsourced import CuratorClient, InputNoiseRBF, Modeler

    remote = CuratorClient(options.url, token=token, cafile=options.cafile)
    release = remote.dataset()
    settings: dict[str, Any] = {}
    if options.lengthscale is not None:
        settings["kernel"] = InputNoiseRBF(
            lengthscale=options.lengthscale, noise_std=release.scale or 0.0
        )
        settings["noise_std"] = options.noise_std
    modeler = Modeler(release, delta=options.delta, **settings)
    history = modeler.run(
        remote.query, options.steps, checkpoint=options.checkpoint, progress=not options.quiet
    )
    best = modeler.best
    if options.json:
        print(
            json.dumps(
                {
                    "best": {"index": best.index, "y": best.y},
                    "history": [{"index": a.index, "y": a.y} for a in history],
                    "guarantee": release.guarantee.to_dict(),
                }
            )
        )
        return 0
    print(f"best row {best.index} with {best.y:g}, of {len(history)} asked")
    print(release.guarantee)
    return 0
