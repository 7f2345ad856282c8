"""``make mutants``: break the lines that carry a proof, one at a time, and see a test fail.

Each mutant changes one fragment of one line in a copy of the repository (a factor, a direction of
rounding, a comparison) and runs the tests that should notice. Exits with status 1 if one survives.
Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from benchmarks.common import RESULTS, save_results

ROOT = Path(__file__).parent.parent
COPIED = ("botorch_dp", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md")
Outcome = Literal["killed", "survived", "stale", "timeout"]


@dataclass(frozen=True)
class Mutant:
    """One broken line.

    Args:
        file: Where, below ``botorch_dp``.
        old: A fragment that occurs there exactly once.
        new: What it becomes.
        tests: The tests that should fail, below ``tests``.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """The file from the root."""
        return f"botorch_dp/{self.file}"

    def applied(self, text: str) -> str | None:
        """The broken text, or None if the fragment is not there exactly once."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def _mutants(file: str, tests: str, *changes: tuple[str, str]) -> list[Mutant]:
    """Mutants of one file, all tested alike: (old, new)."""
    return [Mutant(file, old, new, tuple(tests.split())) for old, new in changes]


BOUNDARIES = "test_boundaries.py"

MUTANTS = [
    *_mutants(
        "privacy/budget.py",
        f"{BOUNDARIES} privacy/test_budget.py privacy/test_ledger.py privacy/test_renyi_ledger.py",
        ("ALLOWANCE = Fraction(1, 10**12)", "ALLOWANCE = Fraction(1, 10**6)"),
        (
            "totals.epsilon + epsilon <= Fraction(self.epsilon) * generous",
            "totals.epsilon <= Fraction(self.epsilon) * generous",
        ),
        (
            "totals.epsilon + epsilon <= Fraction(self.epsilon) * generous",
            "epsilon <= Fraction(self.epsilon) * generous",
        ),
        (
            "totals.epsilon + epsilon <= Fraction(self.epsilon)",
            "totals.epsilon + epsilon < Fraction(self.epsilon)",
        ),
        (
            "totals.delta + delta <= Fraction(self.delta) * generous",
            "delta <= Fraction(self.delta) * generous",
        ),
        (
            "totals.mu_squared + mu**2 <= Fraction(self.mu) ** 2 * generous",
            "mu**2 <= Fraction(self.mu) ** 2 * generous",
        ),
        (
            "totals.mu_squared + mu**2 <= Fraction(self.mu) ** 2 * generous",
            "totals.mu_squared + mu**2 <= Fraction(self.mu) * generous",
        ),
        (
            "(Fraction(epsilon) for epsilon, _, _ in parts), Fraction(0)",
            "(Fraction(epsilon) for epsilon, _, _ in parts[:1]), Fraction(0)",
        ),
        (
            "(Fraction(mu) ** 2 for _, _, mu in parts)",
            "(Fraction(mu) ** 2 / 2 for _, _, mu in parts)",
        ),
        (
            "float(_decimal(self.epsilon) - _decimal(summed[0])),",
            "self.epsilon,",
        ),
        (
            "if order is None or is_summed or isinstance(loss, GaussianLoss):",
            "if order is None or is_summed:",
        ),
        (
            "sqrt_above(2 * Fraction(divergence) / Fraction(order))",
            "sqrt_above(Fraction(divergence) / Fraction(order))",
        ),
    ),
    *_mutants(
        "privacy/rounding.py",
        f"{BOUNDARIES} privacy/test_budget.py privacy/test_printed.py",
        (
            "nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)",
            "nearest",
        ),
        (
            "nearest if Fraction(nearest) <= exact else math.nextafter(nearest, -math.inf)",
            "nearest",
        ),
        ("return float_above(below if below**2 == square else above)", "return float(below)"),
        (
            "return _cut(value, digits, ROUND_CEILING)",
            'return _cut(value, digits, "ROUND_HALF_UP")',
        ),
        ("return _cut(value, digits, ROUND_FLOOR)", 'return _cut(value, digits, "ROUND_HALF_UP")'),
    ),
    *_mutants(
        "privacy/losses.py",
        f"{BOUNDARIES} privacy/test_losses.py",
        (
            "return 2.0 if self is NeighboringRelation.REPLACE_ONE else 1.0",
            "return 1.0",
        ),
        ("return 0.0, 0.0, pure_dp_mu(epsilon)", "return 0.0, 0.0, epsilon"),
        (
            'return "replace" if relation is NeighboringRelation.REPLACE_ONE else "add_or_remove"',
            'return "add_or_remove"',
        ),
    ),
    *_mutants(
        "privacy/pld/composition.py",
        f"{BOUNDARIES} privacy/test_losses.py",
        ("math.sqrt(steps) / z if z > 1e-150", "1.0 / z if z > 1e-150"),
    ),
    *_mutants(
        "privacy/pld/gaussian.py",
        f"{BOUNDARIES} privacy/pld/test_gaussian.py",
        ("_LOG_MARGIN = 1e-12", "_LOG_MARGIN = -1e-12"),
        (
            "return safe_root(excess, high, low, tolerance=2e-16)",
            "return safe_root(excess, high, low, tolerance=2e-16) * (1 + 1e-12)",
        ),
        ("    while excess(end) > 0:\n", "    while False:\n"),
        (
            "return 2 * math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2)))",
            "return math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2)))",
        ),
    ),
    *_mutants(
        "privacy/mechanisms.py",
        f"{BOUNDARIES} privacy/test_mechanisms.py",
        ("rho = Fraction(mu) ** 2 / 2", "rho = Fraction(mu) ** 2 * 2"),
        (
            "Fraction(sensitivity) / Fraction(epsilon),\n        lambda scale: _l",
            "Fraction(sensitivity) / Fraction(epsilon) / 2,\n        lambda scale: True or _l",
        ),
        (
            "        2 * Fraction(sensitivity) / Fraction(epsilon)",
            "        1 * Fraction(sensitivity) / Fraction(epsilon)",
        ),
    ),
    *_mutants(
        "privacy/ledger.py",
        f"{BOUNDARIES} privacy/test_mechanisms.py",
        ("price if unsafe_seed is None else price.simulated()", "price"),
    ),
    *_mutants(
        "privacy/sparse_vector_technique.py",
        f"{BOUNDARIES} privacy/test_mechanisms.py privacy/test_sparse_vector.py",
        ("2 * self.max_positives * self.sensitivity", "self.max_positives * self.sensitivity"),
        ("2 * self.max_positives * self.sensitivity", "2 * self.sensitivity"),
        ("sensitivity=math.ceil(sensitivity / step)", "sensitivity=math.floor(sensitivity / step)"),
        ("steps = np.floor(values / step)", "steps = np.rint(values / step)"),
    ),
    *_mutants(
        "privacy/pld/distributions.py",
        "privacy/pld/test_distributions.py privacy/test_accounting.py",
        (
            "at_zero = (1 - self.fraction) * (1 - 2 * ndtr(-self.shift / 2))",
            "at_zero = 0 * self.fraction",
        ),
        ("losses = losses - one_sided_loss(c, q, -y)", "losses = losses + 0"),
    ),
    *_mutants(
        "privacy/runs.py",
        "privacy/test_one_draw.py",
        ("unused = [number for number, _, used in rows if not used]", "unused = []"),
        ("for number, _, used in rows if not used]", "for number, _, used in rows]"),
        ("        charge()\n", "        pass\n"),
        (
            'if changed:\n                raise PrivacyError(\n                    f"`key`',
            'if False:\n                raise PrivacyError(\n                    f"`key`',
        ),
        ('self._file.execute("INSERT INTO drawing VALUES (?)", (paid,))', "pass"),
        ('"WHERE NOT EXISTS (SELECT 1 FROM released WHERE key = ?)",', '"WHERE ? IS NOT NULL",'),
        ("        if rows and self._file.query(", "        if False and self._file.query("),
        ("return keyed_hash(self._key, value.digest)", "return keyed_hash(b'', value.digest)"),
    ),
    *_mutants(
        "_files.py",
        "test_files.py",
        ("            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))\n", ""),
        ("        os.register_at_fork(after_in_child=leave)\n", "        pass\n"),
        ("fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
        ("                if connection is not self._connection:\n", "                if False:\n"),
    ),
    *_mutants(
        "privacy/ledger.py",
        "privacy/test_one_draw.py privacy/test_ledger.py privacy/test_mechanisms.py",
        ("        if compartments.affords(totals, cost):\n", "        if True:\n"),
        ("    if guarantee.void is not None:\n", "    if False:\n"),
        ("        if settled != relation.name:\n", "        if False:\n"),
        (
            "        if ledger is not None:\n            raise PrivacyError(",
            "        if False:\n            raise PrivacyError(",
        ),
    ),
    *_mutants(
        "scores.py",
        f"{BOUNDARIES} test_objectives.py",
        (
            "((LARGEST_EXACT // num_records).bit_length() - 1)",
            "((LARGEST_EXACT // num_records).bit_length())",
        ),
        ("levels.round().sum()", "levels.sum()"),
        ("nan_to_num(nan=nan_as).clamp(low, high)", "nan_to_num(nan=nan_as).clamp(low)"),
        ("nan_to_num(nan=nan_as).clamp(low, high)", "nan_to_num(nan=0.0).clamp(low, high)"),
    ),
    *_mutants(
        "estimator_scores.py",
        "test_one_record.py",
        ("failing[self._failing(fitted, np.arange(n))] = True", "failing[:] = True"),
        ("labels = as_numbers(labels)\n", "labels = np.asarray(labels.tolist())\n"),
    ),
    *_mutants(
        "release/choice.py",
        f"{BOUNDARIES} release/test_choice.py",
        ("return 2 * self.confidence_width + gap", "return self.confidence_width + gap"),
        ("self.schedule(self.steps + 1)", "self.schedule(self.steps)"),
        ("3 * self.num_choices, self.delta", "self.num_choices, self.delta"),
    ),
    *_mutants(
        "release/maximum.py",
        f"{BOUNDARIES} release/test_maximum.py release/test_lipschitz.py",
        ("24 * self.steps if", "3 * self.steps if"),
        ('(6 if self.edition == "union_bound" else 3) *', "3 *"),
        ("return self.regret + gap + self.noise_gap", "return self.regret + gap"),
        ("2 * self.num_choices, self.delta)", "self.num_choices, self.delta)"),
        (
            "bounds.append(2 * self.lipschitz / self.lambda_min)",
            "bounds.append(self.lipschitz / self.lambda_min)",
        ),
        (
            "return self.lipschitz * (1 / self.lambda_min - 1 / self.lambda_max)",
            "return 0.0",
        ),
    ),
    *_mutants(
        "release/assumptions.py",
        f"{BOUNDARIES} release/test_assumptions.py",
        (
            "return 2 * math.sqrt((1 - dataset_correlation)",
            "return math.sqrt((1 - dataset_correlation)",
        ),
    ),
    *_mutants(
        "outsourced/transforms.py",
        f"{BOUNDARIES} outsourced/test_transforms.py",
        (".abs() + 2 * g * (size.mT @ size)", ".abs()"),
        ("(stretch + rounding) * (1", "stretch * (1"),
        ("gram.sum(dim=1).max()", "gram.diagonal().max()"),
        ("clamp(-limit, limit) @ projection", "clamp(-1e300, 1e300) @ projection"),
    ),
    *_mutants(
        "outsourced/curator.py",
        f"{BOUNDARIES} outsourced/test_curator.py outsourced/test_answers.py",
        (
            "return float_above(Fraction(high) - Fraction(low))",
            "return high - low",
        ),
        (
            "sensitivity = projected_sensitivity(self.projection, row_distance)",
            "sensitivity = row_distance",
        ),
    ),
    *_mutants(
        "descent/step.py",
        f"{BOUNDARIES} descent/test_clipping.py",
        ("clip_norm * (1 - (4 * num_records + 2 * dim + 16) * _EPS)", "clip_norm"),
        ("62 - math.ceil(math.log2(num_records))", "63 - math.ceil(math.log2(num_records))"),
        ("entries = directions.long()", "entries = directions.round().long()"),
        ("self.bound / norms.clamp_min_(", "2 * self.bound / norms.clamp_min_("),
        ("entries &= -finite.long()", "entries &= -1"),
    ),
    *_mutants(
        "descent/step.py",
        "descent/test_dp_gibo.py",
        ("sensitivity = 2 * clip_norm /", "sensitivity = clip_norm /"),
    ),
    *_mutants(
        "descent/settings.py",
        f"{BOUNDARIES} descent/test_settings.py",
        ("sqrt_below(Fraction(self.mu) ** 2 / self.steps)", "self.mu / math.sqrt(self.steps)"),
        (
            "2 * self.clip_norm / (num_records * self.step_mu)",
            "self.clip_norm / (num_records * self.step_mu)",
        ),
    ),
    *_mutants(
        "training/randomness.py",
        f"{BOUNDARIES} training/test_randomness.py",
        ("ROUNDING_SLACK = 2e-6", "ROUNDING_SLACK = 0.0"),
        (" + grid * math.sqrt(total.numel())", ""),
        ("part.mul_(1 / grid).round_()", "part.mul_(1 / grid)"),
        (
            "border, fraction = divmod(256 * probability, 1.0)",
            "border, fraction = divmod(255 * probability, 1.0)",
        ),
    ),
    *_mutants(
        "training/plan.py",
        f"{BOUNDARIES} training/test_plan.py",
        ("return self.relation.sum_sensitivity * self.clip_norm", "return self.clip_norm"),
        ("return self.epochs * self.steps_per_epoch", "return self.steps_per_epoch"),
        ("return self.noise_multiplier * self.clip_norm if", "return self.noise_multiplier if"),
    ),
    *_mutants(
        "training/run.py",
        "training/test_run.py training/test_training_privacy.py",
        ('"sensitivity": plan.sensitivity}', '"sensitivity": plan.clip_norm}'),
        ('{"std": plan.noise_std,', '{"std": plan.noise_std / 2,'),
    ),
    *_mutants(
        "groups.py",
        "test_groups.py training/test_people.py test_scores_of_people.py",
        ("np.repeat(1 / self._counts, self._counts)", "1.0"),
        ("ranks < self.per_group", "ranks <= self.per_group"),
        ("torch.where(weights > 0, values.double() * weights, 0.0)", "values.double() * weights"),
    ),
    *_mutants(
        "training/run.py",
        "training/test_people.py",
        ("filled * self._groups.weights[places]", "filled"),
        ("alike = self._groups is None and", "alike ="),
    ),
    *_mutants(
        "scores.py",
        "test_scores_of_people.py",
        ("scores.nan_to_num(self._nan_as).clamp(*self._bounds)", "scores.nan_to_num(self._nan_as)"),
    ),
    *_mutants(
        "training/engines/base.py",
        f"{BOUNDARIES} training/test_fused.py training/test_training_privacy.py",
        (".clamp_(max=1.0).nan_to_num_(nan=0.0)", ".nan_to_num_(nan=0.0)"),
    ),
    *_mutants(
        "training/engines/fused.py",
        "training/test_engines.py",
        ("torch.hypot(norms, norms.new_ones(()))", "norms"),
    ),
    *_mutants(
        "training/engines/fused.py",
        "training/test_fused.py",
        ("beta=0 if begin else 1", "beta=1"),
        ("if layer.bias_sum is not None and begin:", "if layer.bias_sum is not None:"),
    ),
    *_mutants(
        "training/output_gradients.py",
        "training/test_output_gradients.py",
        ("return found if same else None", "return found"),
        ("F.cross_entropy and num_classes is None", "F.cross_entropy and False"),
    ),
    *_mutants(
        "training/engines/contributions.py",
        "training/test_engines.py training/test_ghost.py",
        ("factors.mul_(counts)", "factors"),
        ("torch.bmm(a, a.mT).mul_(torch.bmm(g, g.mT)).sum(dim=(1, 2))", "lengths(a[:, 0])"),
    ),
    *_mutants(
        "training/output_perturbation.py",
        f"{BOUNDARIES} training/test_output_perturbation.py",
        (
            "distance = 4 / (regularization * self.num_records)",
            "distance = 2 / (regularization * self.num_records)",
        ),
    ),
    *_mutants(
        "privacy/selection.py",
        "privacy/test_selection.py",
        ("at_zero = np.min(deltas + (1 - deltas) * np.tanh(epsilons / 2))", "at_zero = 0.0"),
        ("below = 1 - np.exp(-epsilons) * (1 - deltas)", "below = deltas"),
        ("upper = (factor * u + deltas).min(axis=0)", "upper = (factor * u).min(axis=0)"),
        ("lower = (1 - (1 - u - deltas) / factor)", "lower = (1 - (1 - u) / factor)"),
        ("np.where(values[:, -1] > 0, np.inf, total)", "total"),
        ("least = self.number.slope(base.other(u)[1:])", "least = self.number.slope(u[1:])"),
        ("                np.full(len(repeated[0]), beside_mu),", "                None,"),
        ("(-(1 + self.shape))", "(-self.shape)"),
        ("int(self.draws(1)[0])", "round(self.mean)"),
        ("kept, numbers[generator.random(size) * numbers < 1]", "kept, numbers"),
    ),
    *_mutants(
        "tuning/calibration.py",
        "tuning/test_private_fit.py tuning/test_private_selection.py",
        (
            "return selection.profile(mu, delta), mu",
            "return selection.profile(2 * mu, delta), mu",
        ),
    ),
    *_mutants(
        "tuning/private_selection.py",
        "tuning/test_private_fit.py tuning/test_private_selection.py",
        (
            'beside = self._score_noise.mu if self.scored_on == "training" else None',
            "beside = None",
        ),
    ),
    *_mutants(
        "tuning/routes/slope.py",
        "tuning/test_slopes.py tuning/test_private_search.py",
        ("sensitivity = 2 * clip_norm(len(mean))", "sensitivity = clip_norm(len(mean))"),
        ('norm="l1")', 'norm="l2")'),
    ),
    *_mutants(
        "integrations/opacus_loop.py",
        "integrations/test_opacus.py",
        (
            "add_clipped(found, self._sums, factors, self.plan.clip_norm, 0.0)",
            "add_clipped(found, self._sums, factors, 2 * self.plan.clip_norm, 0.0)",
        ),
        ('{"std": self.plan.noise_std,', '{"std": self.plan.noise_std / 2,'),
        ("        self._check_same(optimizer)\n", "        pass\n"),
        ("        if not same:", "        if False:"),
    ),
    *_mutants(
        "tuning/trials.py",
        "tuning/test_private_fit.py",
        ("rank = [outcome.score, float(tie)]", "rank = [outcome.score, -float(number)]"),
        ("self._configs(self._seed(number, 0))", "self._configs(self._seed(0, 0))"),
    ),
    *_mutants(
        "training/calls.py",
        "training/test_calls.py",
        ("size = _TOGETHER if calls.can_be_vectorized() else 1", "size = len(records)"),
        ("buffers = {name: value.clone() for", "buffers = {name: value for"),
        ("            half = len(places) // 2", "            half = 0"),
    ),
    *_mutants(
        "training/isolation.py",
        "training/test_isolation.py training/test_calls.py",
        ("_in_double(tried.eval(), data)", "_in_double(tried.train(), data)"),
        (
            "        return model, False\n    return called, True",
            "        pass\n    return model, False",
        ),
        ("for places in (*neighbours, some, some.repeat_interleave(2)):", "for places in ():"),
        ("few = torch.arange(together, device=device)", "few = torch.zeros(1, dtype=torch.long)"),
        ("            found.append(torch.eye(", "            (torch.eye("),
        ("    padded[0, 1:] = ignored", "    padded[0, 1:] = 0"),
    ),
    *_mutants(
        "training/records.py",
        "test_one_record.py",
        ("if _form_of(x, y) == _form_of(self._X, self._Y):", "if True:"),
        ("return each_part(torch.zeros_like, self._X), torch.zeros_like(self._Y), False", "raise"),
    ),
    *_mutants(
        "integrations/columns.py",
        "integrations/test_estimators.py",
        ("if kind not in kinds or (kind", "if (kind"),
        ("known.get(each, -1) if isinstance(each, str) else -1", "known.get(each, -1)"),
    ),
    *_mutants(
        "training/ranges.py",
        "training/test_ranges.py",
        ("math.sqrt(relation.sum_sensitivity * num_columns)", "math.sqrt(num_columns)"),
        ("mu=mu / math.sqrt(_ROUNDS)", "mu=mu"),
        (
            "read=lambda: sorted_columns(read()),",
            "read=lambda columns=sorted_columns(read()): columns,",
        ),
    ),
]


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    outcome: Outcome
    seconds: float

    @property
    def good(self) -> bool:
        """Whether a test failed."""
        return self.outcome in ("killed", "timeout")


def stale() -> list[Mutant]:
    """Mutants whose fragment does not occur exactly once in its file."""
    texts = {mutant.path: (ROOT / mutant.path).read_text() for mutant in MUTANTS}
    return [mutant for mutant in MUTANTS if mutant.applied(texts[mutant.path]) is None]


def tests_pass(tests: Iterable[str], copy: Path, timeout: float | None) -> bool:
    """Whether these tests pass in a copy of the repository; forked where torch is loaded already.

    Raises:
        TimeoutError: If they take longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = _SERVER.Process(target=_run_tests, args=(list(tests), copy, output))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            raise TimeoutError
        # 0: passed, 1: failed, 2: not even collected; below 0: killed by a signal.
        if process.exitcode > 2 or (process.exitcode and timeout is None):
            raise RuntimeError(f"Tests fail without any mutant: {output.read_text()[-2000:]}")
    return process.exitcode == 0


_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["botorch", "dp_accounting", "opacus", "opendp.prelude", "pytest", "scipy.stats", "sklearn"]
)


def _run_tests(tests: list[str], copy: Path, output: Path) -> None:
    """In a process of its own: pytest on a copy, which comes before any installed package."""
    import pytest

    os.setsid()
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.split(".")[0] in ("botorch_dp", "tests")]:
        del sys.modules[name]
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        options = ["-x", "-q", "-p", "no:cacheprovider"]
        code = pytest.main([*options, *(f"tests/{test}" for test in tests)])
    sys.exit(int(code))


def run_mutant(mutant: Mutant, copy: Path, timeout: float) -> Result:
    """Apply a mutant in a copy of the repository, run its tests there, and take it back."""
    start, path = time.perf_counter(), copy / mutant.path
    text = path.read_text()
    broken = mutant.applied(text)
    if broken is None:
        return Result(mutant, "stale", 0.0)
    try:
        path.write_text(broken)
        passed = tests_pass(mutant.tests, copy, timeout)
        outcome: Outcome = "survived" if passed else "killed"
    except TimeoutError:
        outcome = "timeout"
    finally:
        path.write_text(text)
    return Result(mutant, outcome, time.perf_counter() - start)


def run_all(
    mutants: list[Mutant], *, workers: int, timeout: float, check_first: bool = True
) -> list[Result]:
    """All mutants, each worker in a copy of its own; first the tests without any, which must pass.

    Raises:
        RuntimeError: If a test fails on the code as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            copy = Path(folder) / str(number)
            copy.mkdir()
            for name in COPIED:
                source = ROOT / name
                if source.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "results")
                    shutil.copytree(source, copy / name, ignore=ignored)
                elif source.exists():
                    shutil.copy(source, copy / name)
            copies.put(copy)

        def work(mutant: Mutant) -> Result:
            copy = copies.get()
            try:
                result = run_mutant(mutant, copy, timeout)
            finally:
                copies.put(copy)
            old, new = (" ".join(part.split()) for part in (mutant.old, mutant.new))
            change = f"{mutant.file}: {old}  ->  {new or '(nothing)'}"
            print(f"{result.outcome:9s} {result.seconds:5.0f} s  {change}", flush=True)
            return result

        def check_unbroken(test: str) -> None:
            copy = copies.get()
            try:
                tests_pass([test], copy, None)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            if check_first:
                list(pool.map(check_unbroken, sorted({t for m in mutants for t in m.tests})))
            return list(pool.map(work, mutants))


def _name(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.file, mutant.old, mutant.new


def _killed_before() -> dict[tuple[str, str, str], float]:
    """Mutants that the stored results call killed, with the seconds it took."""
    stored = json.loads((RESULTS / "mutants.json").read_text())["mutants"]
    return {
        (row["file"], row["old"], row["new"]): row["seconds"]
        for row in stored
        if row["outcome"] == "killed"
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants of files whose name contains this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--survivors", action="store_true", help="only those that were not killed the last time"
    )
    parser.add_argument("--skip-unbroken", action="store_true", help="do not run all tests first")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each mutant")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.file]
    known = _killed_before() if options.survivors else {}
    chosen = [mutant for mutant in chosen if _name(mutant) not in known]
    results = run_all(
        chosen,
        workers=options.workers,
        timeout=options.timeout,
        check_first=not options.skip_unbroken,
    )
    ours = {_name(mutant): mutant for mutant in MUTANTS}
    results += [Result(ours[name], "killed", known[name]) for name in known if name in ours]
    totals = Counter(result.outcome for result in results)
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in sorted(totals.items())))
    for result in results:
        if result.outcome == "survived":
            print(f"survived: {result.mutant.file}: {result.mutant.old}")
    if not options.only:
        rows = [
            {**asdict(r.mutant), "outcome": r.outcome, "seconds": round(r.seconds, 1)}
            for r in results
        ]
        save_results("mutants", {"totals": dict(totals), "mutants": rows})
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
