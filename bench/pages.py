"""Puts results into pages: tables between markers, and plots. ``python -m bench.pages``, or with ``--check`` only compares.

Results stand in ``bench/results/``; a page has ``<!-- figures: name -->`` and ``<!-- end -->`` around what is written here. Everything else
in a page is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.circumstances import in_words
from bench.curves import Points, draw

HERE: Final = Path(__file__).resolve().parent
REFERENCE: Final = HERE.parent / "docs" / "reference"
RESULTS: Final = HERE / "results"
BLOCK: Final = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Figures = Sequence[Mapping[str, Any]]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def _ordered(values: Iterable[Any]) -> list[Any]:
    """Each once, as they come."""
    return list(dict.fromkeys(values))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def grid(found: Figures, row: str, column: str, cell: Callable[[Mapping[str, Any]], str], first: str, head: str) -> str:
    """A table with a line for each value of one attribute and a column for each of another."""
    cells = {(figure[row], figure[column]): cell(figure) for figure in found}
    columns = sorted({figure[column] for figure in found})
    lines = [[name, *(cells.get((name, value), "") for value in columns)] for name in _ordered(figure[row] for figure in found)]
    return table([first, *(f"{value:,} {head}".rstrip() for value in columns)], lines)


def curves(found: Figures, name: str, across: str, up: str) -> dict[str, Points]:
    return {
        str(value): [(figure[across], figure[up]) for figure in found if figure[name] == value and figure[up] is not None]
        for value in _ordered(figure[name] for figure in found)
    }


# ---- the page about scale ----------------------------------------------------------------------------------------------------------


def scale_blocks(told: Mapping[str, Any]) -> dict[str, str]:
    conditions, found = told["conditions"], told["figures"]
    series = {name: [figure for figure in found if figure["series"] == name] for name in ("writers", "fragments", "tables")}
    by_writers = series["writers"]
    stated = [
        ("PUT, conditional or not", f"{1000 * conditions['put']:.0f} ms, measured"),
        ("GET", f"{1000 * conditions['get']:.0f} ms, measured; HEAD, LIST and DELETE are taken to be as fast"),
        ("spread", f"each of them times a log-normal factor, sigma {conditions['spread']}"),
        ("bytes", f"{conditions['bytes_per_second'] / 1e6:.0f} MB/s in each request, assumed"),
        ("S3 admits", f"{conditions['writes_per_second']:,.0f} writes and {conditions['reads_per_second']:,.0f} reads/s below a table"),
        ("PostgreSQL", f"{1000 * conditions['statement']:.0f} ms a statement; a transaction is five, its locks held for four of them"),
        ("a message between machines of ours", f"{1000 * conditions['hop']:.0f} ms, assumed"),
        ("prices", ", ".join(f"{kind} ${price:g}" for kind, price in told["prices"].items() if price) + " for a million requests"),
    ]
    return {
        "scale-conditions": table(("", "in this run"), stated)
        + f"\nSeed {told['seed']}. Run on {in_words(told['circumstances']['before'])}\n",
        "scale-rate": grid(by_writers, "way", "writers", _scale_rate, "", "writers"),
        "scale-tail": grid(by_writers, "way", "writers", _tail, "", "writers"),
        "scale-money": grid(by_writers, "way", "writers", lambda it: f"${_number(it['dollars'])}", "", "writers"),
        "scale-requests": table(
            ("1,000 writers", "PUT", "create", "GET", "LIST", "DELETE", "SQL", "commits a version", "kB written", "processor"),
            [_requests(figure) for figure in by_writers if figure["writers"] == 1_000],
        ),
        "scale-fragments": _sizes(series["fragments"], "fragments"),
        "scale-tables": _sizes(series["tables"], "tables"),
    }


def _scale_rate(figure: Mapping[str, Any]) -> str:
    failed = f", {figure['failed']:,} failed" if figure["failed"] else ""
    return f"{_number(figure['per_second'])}/s{failed}"


def _tail(figure: Mapping[str, Any]) -> str:
    return f"{'over ' if figure['at_least'] else ''}{_number(figure['p99'])} s"


def _requests(figure: Mapping[str, Any]) -> list[str]:
    asked = [_number(figure["requests"].get(kind, 0.0)) for kind in ("PUT", "create", "GET", "LIST", "DELETE", "SQL")]
    commits = figure["commits"] / max(figure["versions"], 1)
    return [figure["way"], *asked, f"{commits:.1f}", _number(figure["kilobytes"]), f"{figure['processor_ms']:.1f} ms"]


def _sizes(found: Figures, what: str) -> str:
    header = (what, "rate", "p50", "p99", "for a million", "kB written", "processor")
    return table(
        header,
        [
            (
                f"{figure['size']:,}",
                f"{_number(figure['per_second'])}/s",
                f"{_number(figure['p50'])} s",
                _tail(figure),
                f"${_number(figure['dollars'])}",
                _number(figure["kilobytes"]),
                f"{figure['processor_ms']:.0f} ms",
            )
            for figure in found
        ],
    )


def scale_plots(told: Mapping[str, Any]) -> dict[str, str]:
    found = [figure for figure in told["figures"] if figure["series"] == "writers"]
    return {
        "scale-rate": draw(curves(found, "way", "writers", "per_second"), "writers", "commits a second, of all together"),
        "scale-tail": draw(curves(found, "way", "writers", "p99"), "writers", "p99 of a commit, seconds"),
        "scale-money": draw(curves(found, "way", "writers", "dollars"), "writers", "dollars for the requests of a million commits"),
    }


# ---- the page about peers ----------------------------------------------------------------------------------------------------------

NAMES: Final = {
    "tiltyard": "Tiltyard",
    "tiltyard-postgres": "Tiltyard, PostgreSQL",
    "pylance": "pylance",
    "delta": "delta-rs",
    "iceberg": "pyiceberg, SQLite",
    "iceberg-postgres": "pyiceberg, PostgreSQL",
    "ducklake": "DuckLake, SQLite",
    "ducklake-postgres": "DuckLake, PostgreSQL",
}


BY_WRITERS: Final = ("shared", "own", "deletes", "s3", "s3-far")
PEER_CASES: Final = ("limits", "serial", "open", *BY_WRITERS, "wide", "upsert", "pairs")


def _peer_figures(told: Mapping[str, Any], case: str) -> Figures:
    measured = "serial" if case == "open" else case
    figures = told["cases"][measured]["figures"] if measured in told["cases"] else []
    return [{**figure, "peer": NAMES.get(figure["peer"], figure["peer"])} for figure in figures if figure["case"] == case]


def _when(told: Mapping[str, Any]) -> str:
    """When and under what load each case was measured."""
    lines = []
    for case, measured in told["cases"].items():
        before, after, extent = measured["before"], measured["after"], measured["extent"]
        seconds = extent["seconds"] * (3 if case.startswith("s3") else 1)
        how = f"{seconds:g} s for each count of writers" if case in BY_WRITERS else ""
        wrong = "; ".join(measured["problems"])
        lines.append((case, before["at"].replace("T", " ")[:16], f"{before['load'][0]:g}, {after['load'][0]:g}", how, wrong))
    return table(("case", "begun (UTC)", "load before, after", "", "went wrong and is left out"), lines)


def _rate(figure: Mapping[str, Any]) -> str:
    return f"{_number(figure['per_second'])}/s"


def peer_blocks(told: Mapping[str, Any]) -> dict[str, str]:
    extents = {case: measured["extent"] for case, measured in told["cases"].items()}
    first = next(iter(told["cases"].values()))["before"]
    packages = sorted({package for needed in told["packages"].values() for package in needed})
    by_case = {case: _peer_figures(told, case) for case in PEER_CASES}
    opened = {figure["peer"]: figure for figure in by_case["open"]}
    timed = ("", "p50", "p99")
    upserted = extents.get("upsert", {}).get("rows", 0)
    blocks = {
        "peers-run": f"{first['processors']} processors ({first['machine']}), {first['system']}, Python {first['python']}. "
        f"Peers: {', '.join(packages)}; pylance is the one that Tiltyard uses.\n\n{_when(told)}",
        "peers-limits": table(("", "rate", *timed[1:]), [(it["peer"], _rate(it), *_times(it)) for it in by_case["limits"]]),
        "peers-serial": table(
            (
                f"up to {extents.get('serial', {}).get('commits', 0):,}",
                "appends",
                "rate",
                "p50",
                "p99",
                "the end by the beginning",
                "open the latest",
            ),
            [
                (
                    it["peer"],
                    f"{it['done']:,}",
                    _rate(it),
                    *_times(it),
                    f"{it['course'][-1] / it['course'][0]:.2f}",
                    _times(opened[it["peer"]])[0],
                )
                for it in by_case["serial"]
            ],
        ),
        **{f"peers-{case}": _many(by_case[case]) for case in BY_WRITERS},
        "peers-wide": grid(by_case["wide"], "peer", "size", lambda it: f"{_number(it['p50_ms'])} ms", "one more file", "files"),
        "peers-upsert": table(
            (f"upsert of {upserted // 10:,} rows into {upserted:,}", "time"),
            [(it["peer"], _times(it)[0]) for it in by_case["upsert"]],
        ),
        "peers-pairs": table(("", "rate", *timed[1:]), [(it["peer"], _rate(it), *_times(it)) for it in by_case["pairs"]]),
    }
    unmeasured = {f"peers-{case}": "Not measured yet.\n" for case, found in by_case.items() if not found and case != "open"}
    return {**blocks, **unmeasured}


def _times(figure: Mapping[str, Any]) -> tuple[str, str]:
    return f"{_number(figure['p50_ms'])} ms", f"{_number(figure['p99_ms'])} ms"


def _many(found: Figures) -> str:
    """Rates by the number of writers, and more about the largest number."""
    sizes = sorted({figure["size"] for figure in found})
    cells = {(figure["peer"], figure["size"]): figure for figure in found}
    lines = []
    for peer in _ordered(figure["peer"] for figure in found):
        last = cells.get((peer, sizes[-1]))
        rates = [_rate(cells[peer, size]) if (peer, size) in cells else "" for size in sizes]
        fair = "" if last is None or last["fairness"] is None else f"{last['fairness']:.2f}"
        lines.append([peer, *rates, *(_times(last) if last else ("", "")), fair, "" if last is None else f"{last['failed']:,}"])
    most = f"with {sizes[-1]}:" if sizes else ""
    return table(["writers", *map(str, sizes), f"{most} p50", "p99", "least/most", "failed"], lines)


def peer_plots(told: Mapping[str, Any]) -> dict[str, str]:
    serial: dict[str, Points] = {
        figure["peer"]: [(100 * (number + 1), value) for number, value in enumerate(figure["course"])]
        for figure in _peer_figures(told, "serial")
    }

    def by_size(case: str, up: str) -> dict[str, Points]:
        return curves(_peer_figures(told, case), "peer", "size", up)

    wanted: dict[str, tuple[dict[str, Points], str, str]] = {
        "peers-serial": (serial, "versions there are", "an append, ms (medians)"),
        "peers-shared": (by_size("shared", "per_second"), "writer processes", "appends a second, all on one table"),
        "peers-own": (by_size("own", "per_second"), "writer processes", "appends a second, each on its own table"),
        "peers-wide": (by_size("wide", "p50_ms"), "files there are", "one more, ms (medians)"),
        "peers-deletes": (by_size("deletes", "per_second"), "writer processes", "deletes a second of different rows of one file"),
        "peers-s3": (by_size("s3", "per_second"), "writer processes", "appends a second, all on one table in an object store"),
        "peers-s3-far": (by_size("s3-far", "per_second"), "writer processes", "appends a second, 50 ms more for each request"),
    }
    return {name: draw(*what) for name, what in wanted.items() if what[0]}


# ---- all of it ---------------------------------------------------------------------------------------------------------------------

PAGES: Final = {"scale": (scale_blocks, scale_plots, "scale.md"), "peers": (peer_blocks, peer_plots, "benchmarks.md")}


SHOWN: Final = {
    "scale-rate": "Commits a second by the number of writers",
    "scale-tail": "p99 of a commit by the number of writers",
    "scale-money": "Dollars for the requests of a million commits",
    "peers-serial": "An append by the number of versions there are",
    "peers-shared": "Appends a second of all writers of one table",
    "peers-own": "Appends a second of all writers, each on its own table",
    "peers-wide": "One more file on very many",
    "peers-deletes": "Deletes a second of different rows of one file",
    "peers-s3": "Appends a second of all writers of one table in an object store",
    "peers-s3-far": "The same with 50 ms more for each request",
}
"""Plots that stand before the table of the same name, and what they show."""


def _with_plot(name: str, block: str, drawn: Collection[str]) -> str:
    return f"![{SHOWN[name]}](plots/{name}.svg)\n\n{block}" if name in drawn else block


def written(page: str, blocks: Mapping[str, str]) -> str:
    """A page with what belongs between its markers.

    Raises:
        KeyError: a page asks for figures that there are none of, or has no place for some.
    """
    asked = [found[2] for found in BLOCK.finditer(page)]
    if missing := set(blocks) ^ set(asked):
        raise KeyError(f"in the page or in the results, not in both: {', '.join(sorted(missing))}")
    return BLOCK.sub(lambda found: f"{found[1]}\n{blocks[found[2]]}\n{found[3]}", page)


def outputs() -> dict[Path, str]:
    """Every page and plot that there are results for, by its file."""
    found = {}
    for name, (blocks, plots, page) in PAGES.items():
        results = RESULTS / f"{name}.json"
        if results.exists():
            told = json.loads(results.read_text())
            drawn = plots(told)
            shown = {block: _with_plot(block, text, drawn) for block, text in blocks(told).items()}
            found[REFERENCE / page] = written((REFERENCE / page).read_text(), shown)
            found |= {REFERENCE / "plots" / f"{plot}.svg": text for plot, text in drawn.items()}
    return found


def main() -> None:
    wanted = outputs()
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
        if stale:
            raise SystemExit(f"{', '.join(stale)} not in step with bench/results; run `python -m bench.pages`")
        return
    for path, text in wanted.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
