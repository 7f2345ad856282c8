"""Selection: space-filling configurations are compared by permute-and-flip [McKenna2020]."""

from __future__ import annotations

import math
from functools import cached_property

from botorch_dp.space import Config
from botorch_dp.tuning.routes.base import (
    PURE_SCORE_SHARE,
    Part,
    Releases,
    Route,
    SearchPlan,
    split,
)


class SelectionRoute(Route):
    """One of many configurations, by their noisy mean scores: pure epsilon-DP."""

    name = "selection"

    @cached_property
    def candidates(self) -> list[Config]:
        """What is compared: configurations that differ.

        They are the middle of the space, the incumbent, which may lie outside of it, and others
        that fill the space.
        """
        settings = self.settings
        count = max(settings.evaluations - self.release_score, 1)
        filling = settings.coordinates.filling(count)
        if settings.incumbent is None or settings.incumbent in filling:
            return filling
        return [filling[0], dict(settings.incumbent), *filling[1 : max(count - 1, 1)]][:count]

    def plan(self, why: str = "") -> SearchPlan:
        """Its cost and its noise."""
        weights: dict[Part, float] = {"selection": 1.0}
        if self.release_score:
            weights = {"selection": 1 - PURE_SCORE_SHARE, "score": PURE_SCORE_SHARE}
        shares = split(self.settings.budget.epsilon, weights)
        count = len(self.candidates)
        tail = 2 * self.settings.one_record / shares["selection"] * math.log(count / 0.05)
        return self.planned(
            reason=f"permute-and-flip on space-filling configurations, because {why}",
            shares=shares,
            evaluations={"selection": count, "score": 1},
            noise=f"With 95% probability the published configuration scores within {tail:.2g} of "
            f"the best of the {count} tried.",
            seen=f"selection, a score difference of {tail:.2g}",
        )

    def run(self, plan: SearchPlan, releases: Releases) -> Config:
        """The chosen configuration."""
        return releases.choose(self.candidates)
