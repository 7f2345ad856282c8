"""``make audit``: every mechanism and deliberately broken versions of it, as one table.

An honest mechanism must not be refuted (the chance of that is at most 1e-6), and every broken
version (``tests/privacy/audit_cases.py``) must be. Exits with status 1 if an honest mechanism is
refuted or a broken version is not. A million draws of each take ten minutes or so.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from benchmarks.common import save_results
from botorch_dp._checks import check_integer
from botorch_dp.privacy.audit import FEWEST_SAMPLES, AuditReport
from botorch_dp.privacy.rounding import rounded_down, rounded_up
from tests.privacy.audit_cases import CASES, CONFIDENCE, Broken


@dataclass(frozen=True)
class AuditRow:
    """One line of the table: a mechanism, or a broken version with its mistake.

    Args:
        mechanism: Its name.
        mistake: What is wrong with it; empty for the mechanism itself.
        report: What the audit found.
        draws: How many draws it takes to show the mistake.
    """

    mechanism: str
    mistake: str
    report: AuditReport
    draws: int = 0

    @property
    def good(self) -> bool:
        """Whether the honest passed, or the broken was caught."""
        return self.report.passes is (self.mistake == "")

    @property
    def verdict(self) -> str:
        """What the audit says of it; a mistake that needs more draws is no failure."""
        if not self.mistake:
            return "not refuted" if self.good else "REFUTED"
        if self.good:
            return "caught"
        if self.report.samples < self.draws:
            return f"not caught with so few draws: it takes {self.draws:,}"
        return "NOT CAUGHT"


_HEADER = (
    f"{'mechanism':<19}{'broken version':<27}{'delta':>6}{'claimed':>9}{'proven':>9}"
    f"{'time':>7}  verdict"
)


def run_audits(*, samples: int, only: str = "") -> list[AuditRow]:
    """Audit all mechanisms whose name contains ``only``, printing a table on the way.

    Args:
        samples: Draws from each of the two neighbours.
        only: Part of the mechanisms' names, in any case.
    """
    check_integer("samples", samples, at_least=FEWEST_SAMPLES)
    wanted = only.lower().replace("_", " ").replace("-", " ")
    cases = [case for case in CASES if wanted in case.name.lower().replace("-", " ")]
    if not cases:
        names = ", ".join(case.name for case in CASES)
        raise ValueError(f"There is no mechanism called {only!r}; there are {names}.")
    print(
        f"{samples:,} draws from each of two neighbours, confidence "
        f'{100 * CONFIDENCE:.10g}%.\n"proven" is what the audit shows: epsilon is at least '
        f"that.\n\n{_HEADER}\n{'-' * len(_HEADER)}"
    )
    rows = []
    for case in cases:
        for mistake, broken in {"": Broken(case.honest, 0), **case.broken}.items():
            start = time.perf_counter()
            report = case.audit(broken.mechanism, samples)
            rows.append(AuditRow(case.name, mistake, report, broken.draws))
            print(_line(rows[-1], time.perf_counter() - start), flush=True)
    print(f"\n{_summary(rows)}")
    return rows


def _summary(rows: list[AuditRow]) -> str:
    refuted = [row for row in rows if not row.mistake and not row.good]
    missed = [row for row in rows if row.mistake and not row.good]
    said = "No mechanism was refuted"
    if refuted:
        names = ", ".join(row.mechanism for row in refuted)
        said = f"{len(refuted)} mechanisms were REFUTED ({names})"
    if not missed:
        return f"{said}; every broken version was caught."
    most = max(row.draws for row in missed)
    count = f"{len(missed)} of {sum(bool(row.mistake) for row in rows)} broken versions"
    if missed[0].report.samples < most:
        return f"{said}. {count} were not caught with so few draws: take --samples {most}."
    return f"{said}. {count} were NOT CAUGHT: this audit would miss such mistakes."


def _line(row: AuditRow, seconds: float) -> str:
    report = row.report
    claim = rounded_up(report.claim or 0.0)
    return (
        f"{row.mechanism:<19}{row.mistake:<27}{report.delta:>6g}{claim:>9}"
        f"{rounded_down(report.lower_bound):>9}{seconds:>6.0f}s  {row.verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000, help="draws from each data set")
    parser.add_argument("--only", default="", help="audit the cases whose name contains this")
    options = parser.parse_args()
    rows = run_audits(samples=options.samples, only=options.only)
    if options.samples >= 1_000_000 and not options.only:
        save_results("audit", {"rows": rows})
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
