"""``python -m botorch_dp`` is the same as ``botorch-dp``."""

import sys

from botorch_dp.cli import main

sys.exit(main())
