"""Pages with results: what stands between their markers is what the results say, and the plots show it."""

from __future__ import annotations

import re

import pytest

from bench import curves, pages


def test_pages_and_plots_are_in_step_with_the_results() -> None:
    wanted = pages.outputs()
    assert [path.name for path, text in wanted.items() if path.read_text() != text] == [], "run `python -m bench.pages`"
    for name, (_, _, page) in pages.PAGES.items():
        shown = re.findall(r"\]\(plots/([\w-]+\.svg)\)", (pages.REFERENCE / page).read_text())
        drawn = {path.name for path in wanted if path.name.startswith(f"{name}-") and path.suffix == ".svg"}
        assert drawn <= set(shown), f"{page} does not show all of its plots"


def test_a_page_has_a_place_for_everything() -> None:
    page = "before\n<!-- figures: rate -->\nold\n<!-- end -->\nafter\n"
    assert pages.written(page, {"rate": "new\n"}) == "before\n<!-- figures: rate -->\n\nnew\n\n<!-- end -->\nafter\n"
    with pytest.raises(KeyError, match="tail"):
        pages.written(page, {"rate": "new", "tail": "more"})
    with pytest.raises(KeyError, match="rate"):
        pages.written(page, {})


def test_a_curve_goes_up_where_its_values_do() -> None:
    drawn = curves.draw({"a <b>": [(1, 10), (10, 100), (100, 0)], "empty": [(0, 0)]}, "writers", "rate")
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r'points="([^"]*)"', drawn)[0].split()]
    (x1, y1), (x2, y2) = points
    assert x2 > x1
    assert y2 < y1, "up is less in SVG"
    assert "a &lt;b&gt;" in drawn
    assert "empty" not in drawn
    assert min(x1, x2) >= 0
    assert max(x1, x2) <= curves.WIDTH
