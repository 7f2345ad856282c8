"""What each benchmark has to do with the papers: which table or figure, and how far it is the same.

The pages in ``docs/papers`` and the scripts themselves take their words from here, so that no
script calls a problem the paper's when it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``as in the text``: distributions, sizes and methods are those the text gives. ``stand-in data``:
#: the same experiment on other data. ``variant``: a problem of ours that resembles it.
Problem = Literal["as in the text", "stand-in data", "variant"]


@dataclass(frozen=True)
class Reproduction:
    """One table, figure or example.

    Args:
        script: Module of ``benchmarks``.
        paper: Key of the paper in the references.
        item: The table, figure or example, as the paper numbers it.
        problem: How far the problem is the paper's.
        departures: What differs from the text or is not in it.
        minutes: How long it took, on one of two shared cores.
        options: Options of the command.
        reduced: Options that make it run within seconds, to see that it runs.
    """

    script: str
    paper: str
    item: str
    problem: Problem
    departures: str
    minutes: float
    options: str = ""
    reduced: str = ""

    @property
    def command(self) -> str:
        """How to run it."""
        return " ".join(filter(None, (f"python -m benchmarks.{self.script}", self.options)))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "dp_gibo_examples",
        "Sopa2025",
        "Example 4.1",
        "as in the text",
        "The data are drawn anew; the step size is ours.",
        2.5,
        "--examples 4.1",
        "--seeds 2 --steps 12",
    ),
    Reproduction(
        "dp_gibo_examples",
        "Sopa2025",
        "Example 4.2",
        "as in the text",
        "The data are drawn anew; coefficients, kernel and step size are ours, and B is the true "
        "bound sqrt(2).",
        1,
        "--examples 4.2",
        "--seeds 2 --steps 12",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Example 4.3",
        "as in the text",
        "Inputs (uniform in the unit cube), 500 training records, the clip norm and the step size "
        "are ours.",
        25,
        "--tasks 4.3",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Appendix C.5",
        "as in the text",
        "As example 4.3, with evaluations whose noise has variance .01.",
        8,
        "--tasks C.5",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Example 4.4 and the levels of mu of figure 4",
        "stand-in data",
        "BlogFeedback in place of the CT slices, which could not be had; ranges, loss, AdaGrad and "
        "the levels .2, 1 and infinity of mu are those of the authors' code.",
        20,
        "--tasks 4.4",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Friedman's first function, after example 4.3",
        "variant",
        "Ten length-scales of a Gaussian process regression on another function.",
        2,
        "--tasks friedman",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Breast cancer, after example 4.4",
        "variant",
        "A classifier with 33 parameters on 369 records: an example where privacy is expensive.",
        1.5,
        "--tasks cancer",
        "--draws 1 --steps 2 --train 100 --validation 60",
    ),
    Reproduction(
        "outsourced",
        "Kharkovskii2020",
        "Tables 1 to 9 and figure 2",
        "stand-in data",
        "Function draws are as in the text, with an effective length-scale of 6.25 in place of the "
        "printed 1.25. Loans and properties are public data of the same kind. The printed numbers "
        "of table 1 are at hand; which cells tables 4 to 9 have is assumed.",
        12,
        "",
        "--runs 2 --steps 4 --rows 400",
    ),
    Reproduction(
        "kusner_noise",
        "Kusner2015",
        "Theorems 1 to 8",
        "as in the text",
        "The paper has no experiments: these are its bounds at common sizes.",
        0.2,
    ),
    Reproduction(
        "dpareto_illustrations",
        "Avent2020",
        "Figures 1 to 4",
        "as in the text",
        "Private logistic regression on Adult and the sparse vector technique; grids and the "
        "number of trials shown are ours.",
        1,
        "",
        "--side 4 --trials 18",
    ),
    Reproduction(
        "dpareto_paper",
        "Avent2020",
        "Tables 2 to 4 and figures 5 to 8",
        "as in the text",
        "Sizes are reduced by default; --full is the paper's.",
        17,
    ),
    Reproduction(
        "dpareto_paper",
        "Avent2020",
        "Table 2 and figure 5 at the paper's size",
        "as in the text",
        "Linear models are trained by a compiled loop; the random points of the test are 1,500 in "
        "place of 5,000.",
        120,
        "--full",
    ),
    Reproduction(
        "dpareto_records",
        "Avent2020",
        "Result files of the authors' repository",
        "as in the text",
        "Their epsilons are computed again.",
        0.1,
    ),
)
