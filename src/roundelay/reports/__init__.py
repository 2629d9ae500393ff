"""Run directories in; tables, curves and one self-contained HTML page out. Needs neither torch nor the corpus."""

from roundelay.reports.page import render_html, write_report
from roundelay.reports.runs import Run, load_run, load_runs
from roundelay.reports.table import summary_table, text_table
from roundelay.reports.timeline import write_trace

__all__ = ["Run", "load_run", "load_runs", "render_html", "summary_table", "text_table", "write_report", "write_trace"]
