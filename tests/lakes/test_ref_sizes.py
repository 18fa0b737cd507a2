"""How many bytes branches and tags hold, in all and alone: as many as the files have, and as a cleanup frees."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.lakes.test_merging import shop, table_of
from tests.support.lakes import Site, reads_of_rows
from tiltyard.lake import Lake


def on_disk(root: Path) -> int:
    inside = {"data", "_deletions", "_indices"}
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and inside & {*path.relative_to(root).parts})


def test_what_each_holds_is_what_the_files_have(site: Site, lake: Lake) -> None:
    main, side = shop(lake, ["id"])
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    (held,) = [size for size in lake.branches.sizes() if size.name == "main"]
    assert (held.bytes, held.own, held.tables) == (on_disk(site.directory), 0, 3), "the branch has all of it, too"
    before = on_disk(site.directory)
    lake.tags.create("before")
    side.append(table_of(dict.fromkeys(range(100, 200), "x" * 50)))
    side.delete("id = 3")
    grown = on_disk(site.directory) - before
    sizes = {size.name: size for size in lake.branches.sizes()}
    assert (sizes["side"].bytes, sizes["side"].own) == (before + grown, grown)
    assert (sizes["main"].bytes, sizes["main"].own) == (before, 0)
    main.overwrite(table_of({1: "new"}))
    main.create_index("id", "BTREE")
    lake.branches.merge("side", on_conflict="ours")
    tag = lake.tags.sizes()[0]
    assert (tag.name, tag.bytes, tag.snapshot) == ("before", before, lake.tags["before"].snapshot)


def test_what_a_tag_holds_alone_is_freed_without_it(site: Site, lake: Lake) -> None:
    main, _ = shop(lake)
    lake.branches.delete("side")
    lake.tags.create("old")
    main.overwrite(table_of({1: "new"}))
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    before, tag = on_disk(site.directory), lake.tags.sizes()[0]
    assert tag.own > 0
    lake.tags.delete("old")
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert before - on_disk(site.directory) == tag.own
    assert [(size.name, size.bytes) for size in lake.branches.sizes()] == [("main", on_disk(site.directory))]


def test_no_row_is_read(lake: Lake, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    shop(lake)
    read = reads_of_rows(monkeypatch)
    lake.branches.sizes()
    assert read == []
