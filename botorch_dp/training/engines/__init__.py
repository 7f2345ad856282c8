"""Engines, which compute sums of clipped gradients: each is a file here and a line in a table."""

from importlib import import_module

from botorch_dp.training.engines.base import Engine

#: Names and classes, in the order in which ``engine="auto"`` tries them. One that is never chosen
#: unless it is asked for stands after ``per_record``, which takes any model.
ENGINES = {
    "fused": "FusedEngine",
    "ghost": "GhostEngine",
    "per_record": "PerRecordEngine",
    "opacus": "OpacusEngine",
}


def engine_class(name: str) -> type[Engine]:
    """The class of an engine, imported when it is asked for: Opacus takes seconds."""
    found: type[Engine] = getattr(import_module(f"{__name__}.{name}"), ENGINES[name])
    return found
