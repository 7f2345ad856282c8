"""The report of a ledger: what was spent on what, when, and what is left."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from html import escape
from pathlib import Path

from botorch_dp.privacy import LedgerEntry, PrivacyLedger, Receipt, rounded_down, rounded_up
from botorch_dp.privacy.budget import Compartments, Totals
from botorch_dp.privacy.rounding import exactly
from botorch_dp.report.page import (
    BLACK,
    BLUE,
    ORANGE,
    Page,
    figure,
    hover,
    receipt_details,
    source,
    table,
)

_NOTICE = (
    "What an adaptive run spent, and on what, may follow from the records. Only the budget itself "
    "may be quoted as a guarantee."
)
#: Points of the curve of spending; a ledger may have thousands of charges.
_MOST_POINTS = 400


def ledger_report(
    ledger: PrivacyLedger | str | os.PathLike[str], path: str | os.PathLike[str]
) -> Path:
    """Write a ledger's report: one HTML file that needs no network.

    Args:
        ledger: A ledger, or its file.
        path: Where; must end in .html. Its owner alone may read it.

    Example:
        >>> ledger_report("study.ledger", "ledger.html")
    """
    if isinstance(ledger, PrivacyLedger):
        return _page(ledger).write(path)
    with PrivacyLedger(ledger) as opened:
        return _page(opened).write(path)


def _page(ledger: PrivacyLedger) -> Page:
    budget, entries, relation = ledger.budget, ledger.entries(), ledger.relation
    spent, remaining, balance = ledger.spent(), ledger.remaining(), ledger.balance()
    whole = f"ε = {exactly(budget.epsilon)}, δ = {exactly(budget.delta)}"
    page = Page(
        f"Privacy ledger {os.path.basename(ledger.path)}",
        f"{len(entries)} charges against a budget of {whole}.",
        _NOTICE,
    )
    unit = relation.value if relation else "decided by the first charge"
    facts = [
        ("budget", whole),
        ("spent, rounded up", f"ε = {rounded_up(spent[0])}, δ = {rounded_up(spent[1])}"),
        (
            "left, rounded down",
            f"ε = {rounded_down(remaining[0])}, δ = {rounded_down(remaining[1])}",
        ),
        ("neighbours", unit),
    ]
    if balance is not None:
        limit, used = balance.summed_limit, balance.summed_spent
        facts.append(
            (
                "summed releases",
                f"ε {rounded_up(used[0])} of {rounded_down(limit[0])}, "
                f"δ {rounded_up(used[1])} of {rounded_down(limit[1])}",
            )
        )
        if balance.mu_limit > 0:
            used_mu, limit_mu = rounded_up(balance.mu_spent), rounded_down(balance.mu_limit)
            facts.append(("μ of Gaussian releases", f"{used_mu} of {limit_mu}"))
            if balance.mu_spent > 0:
                facts.append(
                    (
                        "why spent and left may exceed the budget",
                        "squares of μ add up, epsilons of Gaussian releases do not, and what is "
                        "spent and what is left share one δ",
                    )
                )
    said = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts)
    promise = ""
    if relation is not None and entries:
        stated = ledger.guarantee
        receipt = Receipt.of(stated, ledger=ledger)
        promise = f"<p>{escape(stated.paragraph())}</p>{receipt_details(receipt)}"
    page.section("What is left", f"<dl>{said}</dl>{promise}")
    if entries:
        compartments = ledger.compartments()
        assert compartments is not None  # the first charge has decided
        _over_time(page, entries, compartments)
        _by_purpose(page, entries, compartments)
    rows = [
        (
            e.number,
            e.charged_at[:19].replace("T", " "),
            rounded_up(e.epsilon),
            rounded_up(e.delta),
            rounded_up(e.mu),
            e.label,
            str(e.guarantee),
        )
        for e in entries
    ]
    head = ("charge", "time (UTC)", "epsilon", "delta", "mu", "label", "guarantee")
    page.section("All charges", table(head, rows, name="charges"))
    return page


def _over_time(page: Page, entries: Sequence[LedgerEntry], compartments: Compartments) -> None:
    totals, curve = Totals(), []
    step = -(-len(entries) // _MOST_POINTS)
    for entry in entries:
        totals = Totals(
            epsilon=totals.epsilon + Fraction(entry.epsilon),
            delta=totals.delta + Fraction(entry.delta),
            mu_squared=totals.mu_squared + Fraction(entry.mu) ** 2,
        )
        if entry.number % step == 0 or entry.number == len(entries):
            curve.append((entry, compartments.spent(totals)[0]))
    limit = compartments.epsilon + compartments.gaussian_epsilon
    made = figure("charges", "ε spent", height=320, y_range=(0, 1.1 * limit))
    data = source(
        {
            "x": [entry.number for entry, _ in curve],
            "y": [epsilon for _, epsilon in curve],
            "charge": [str(entry.number) for entry, _ in curve],
            "time": [entry.charged_at[:19].replace("T", " ") for entry, _ in curve],
            "spent so far": [rounded_up(epsilon) for _, epsilon in curve],
            "label": [entry.label or entry.guarantee.mechanism for entry, _ in curve],
        }
    )
    made.step("x", "y", source=data, mode="after", line_color=BLUE, line_width=2)
    dots = made.scatter("x", "y", source=data, size=5, fill_color=BLUE, line_color=BLUE)
    made.line(
        [0, len(entries) + 1],
        [limit, limit],
        line_color=BLACK,
        line_dash="dashed",
        legend_label="budget",
    )
    made.legend.location = "bottom_right"
    hover(made, [dots], "charge", "time", "spent so far", "label")
    page.section(
        "Spending",
        page.place("spending", made, f"{rounded_up(curve[-1][1])} of {exactly(limit)} spent."),
        '<p class="note">ε of everything charged so far, Gaussian releases converted at their δ. '
        "Their ε grows by less than the sum of its parts.</p>",
    )


def _by_purpose(page: Page, entries: Sequence[LedgerEntry], compartments: Compartments) -> None:
    """Shares of the two compartments by label; squares of mu are what adds up."""
    shares: dict[str, tuple[int, float, float]] = {}
    for entry in entries:
        label = entry.label or entry.guarantee.mechanism
        count, summed, gaussian = shares.get(label, (0, 0.0, 0.0))
        summed += entry.epsilon / compartments.epsilon if compartments.epsilon else 0.0
        gaussian += (entry.mu / compartments.mu) ** 2 if compartments.mu else 0.0
        shares[label] = (count + 1, summed, gaussian)
    names = sorted(shares, key=lambda name: sum(shares[name][1:]))[-20:]
    made = figure(
        "share of its compartment's budget",
        "",
        height=90 + 34 * len(names),
        y_range=[
            f"{len(names) - i}. {name[:40]} ({shares[name][0]})" for i, name in enumerate(names)
        ],
    )
    for place, legend, colour, pattern in (
        (1, "summed releases: ε", BLUE, " "),
        (2, "Gaussian releases: μ²", ORANGE, "/"),
    ):
        values = [shares[name][place] for name in names]
        if not any(values):
            continue
        lefts = [shares[name][1] if place == 2 else 0.0 for name in names]
        data = source(
            {
                "y": list(made.y_range.factors),
                "right": [left + value for left, value in zip(lefts, values, strict=True)],
                "text": [f" {value:.1%}" if value else "" for value in values],
                "left": lefts,
            }
        )
        made.hbar(
            "y",
            left="left",
            right="right",
            height=0.7,
            source=data,
            fill_color=colour,
            fill_alpha=0.6,
            line_color=BLACK,
            hatch_pattern=pattern,
            legend_label=legend,
        )
        made.text("right", "y", "text", source=data, text_baseline="middle", text_font_size="12px")
    made.x_range.start = 0
    made.x_range.end = 1.3 * max(sum(shares[name][1:]) for name in names)
    made.add_layout(made.legend[0], "above")
    page.section(
        "What it was spent on",
        page.place("purpose", made, "Shares of the budget by label."),
        '<p class="note">By label, with the number of charges; the 20 largest.</p>',
    )
