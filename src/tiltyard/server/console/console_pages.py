"""The pages of the console as data: each path with the function that reads what it shows. Data, no logic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from tiltyard.server.console.branch_pages import branches_page, compare_page, forward_action, merge_action
from tiltyard.server.console.conflict_pages import conflicts_page, pair_page
from tiltyard.server.console.health_page import health_page
from tiltyard.server.console.page_values import ConsolePage, PageRequest
from tiltyard.server.console.pipeline_pages import pipelines_page, run_page
from tiltyard.server.console.table_pages import table_page, tables_page
from tiltyard.server.console.timeline_page import find_page, timeline_page, transaction_page


@dataclass(frozen=True, slots=True)
class PageSpec:
    """One page over HTTP.

    Attributes:
        path: below ``/console``, as Starlette writes it.
        name: for the audit log and the figures.
        work: reads what the page shows; for ``POST``, does what the form asks, and checks the role for it.
        method: of HTTP.
    """

    path: str
    name: str
    work: Callable[[PageRequest], ConsolePage]
    method: Literal["GET", "POST"] = "GET"


PAGES: Final = (
    PageSpec("/", "timeline", timeline_page),
    PageSpec("/transactions", "find", find_page),
    PageSpec("/transactions/{branch}/{snapshot}", "transaction", transaction_page),
    PageSpec("/tables", "tables", tables_page),
    PageSpec("/tables/{table}", "table", table_page),
    PageSpec("/conflicts", "conflicts", conflicts_page),
    PageSpec("/conflicts/{ours}/{theirs}", "pair", pair_page),
    PageSpec("/health", "health", health_page),
    PageSpec("/branches", "branches", branches_page),
    PageSpec("/branches/{branch}", "compare", compare_page),
    PageSpec("/branches/{branch}/merge", "merge", merge_action, "POST"),
    PageSpec("/branches/{branch}/fast-forward", "forward", forward_action, "POST"),
    PageSpec("/pipelines", "pipelines", pipelines_page),
    PageSpec("/pipelines/{run}", "run", run_page),
)
"""Reading needs a role for the tables that are shown; what a page does beside reading, its own function holds against the roles."""
