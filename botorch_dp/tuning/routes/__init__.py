"""The methods of a private search: each is one file with its plan and its run."""

from botorch_dp.tuning.routes.base import Route
from botorch_dp.tuning.routes.descent import DescentRoute
from botorch_dp.tuning.routes.selection import SelectionRoute
from botorch_dp.tuning.routes.slope import SlopeRoute

#: By name, from the one that can always be taken to the one that asks for most: ``"auto"`` takes
#: the last one that nothing speaks against.
ROUTES: dict[str, type[Route]] = {
    route.name: route for route in (SelectionRoute, SlopeRoute, DescentRoute)
}
