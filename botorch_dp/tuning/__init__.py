"""Tuning in one call: what to try, what it costs and what is published are decided together."""

from botorch_dp.tuning.private_fit import FitResult, PrivateFit
from botorch_dp.tuning.private_search import PrivateSearch, SearchResult
from botorch_dp.tuning.private_selection import PrivateSelection

__all__ = ["FitResult", "PrivateFit", "PrivateSearch", "PrivateSelection", "SearchResult"]
