"""`audit`: what is caught, and what too few draws cannot catch."""

from __future__ import annotations

import json

from tests.cli.calling import call


def test_audit(capsys) -> None:
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "40000")
    assert code == 0
    assert "caught" in out
    assert "not refuted" in out
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "400", "--json")
    rows = json.loads(out)
    # So few draws cannot catch the twin, and the command says so.
    assert (code, [row["good"] for row in rows]) == (1, [True, False])
    code, _, err = call(capsys, "audit", "nonsense")
    assert code == 1
    assert "no mechanism" in err
