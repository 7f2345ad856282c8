"""Reports: one file to open in a browser, or a page that follows a study while it runs."""

from botorch_dp.report.ledger import ledger_report
from botorch_dp.report.live import dashboard_app, serve_dashboard
from botorch_dp.report.study import Spending, StudyView, study_report, trials_csv

__all__ = [
    "Spending",
    "StudyView",
    "dashboard_app",
    "ledger_report",
    "serve_dashboard",
    "study_report",
    "trials_csv",
]
