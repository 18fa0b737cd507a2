"""A pipeline from a TOML file. Every complaint names the file, the key and what is allowed there."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tiltyard.errors import InvalidInput, NotFound, StorageError
from tiltyard.options import span_of
from tiltyard.pipeline.parameters import Parameter, filled_in, parameters_of
from tiltyard.pipeline.spec import (
    Expectation,
    FileSource,
    Maintenance,
    Output,
    PipelineSpec,
    SampleTest,
    Source,
    Step,
    TableSource,
    must,
)

T = TypeVar("T")


def load_spec(path: str | os.PathLike[str], parameters: Mapping[str, object] | None = None) -> PipelineSpec:
    """Reads a pipeline, with the values of its parameters.

    Raises:
        NotFound: there is no such file.
        InvalidInput: it is not what a pipeline looks like.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise NotFound(f"There is no pipeline at {file}.", name=str(file)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{file} cannot be read ({error}).", name=str(file)) from None
    return parse_spec(text, str(file), file.resolve().parent, parameters or {})


def parse_spec(text: str, file: str, directory: Path, given: Mapping[str, object] = MappingProxyType({})) -> PipelineSpec:
    """A pipeline from the text of a file."""
    try:
        document = tomllib.loads(text)
        parameters = parameters_of(document, given)
        document.pop("parameters", None)
        return _pipeline(_Keys(filled_in(document, parameters), ""), directory, parameters)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{file} is not TOML: {error}.", argument="file") from None
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}", argument=error.argument) from None


class _Keys:
    """One table of the file, of which every key is taken once, and none may be left."""

    def __init__(self, values: Mapping[str, Any], at: str) -> None:
        self._left = dict(values)
        self._known: list[str] = []
        self.at = at

    def key(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name

    def take(self, name: str, kind: type[T], default: T, what: str) -> T:
        self._known.append(name)
        value: Any = self._left.pop(name, default)
        wrong = value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool))
        must(not wrong, self.key(name), f"is {_short(value)}, and must be {what}")
        found: T = value
        return found

    def text(self, name: str, default: str | None = None) -> str | None:
        return self.take(name, str, default, "text")

    def needed(self, name: str) -> str:
        found = self.text(name)
        must(found is not None, self.key(name), "is missing")
        assert found is not None
        return found

    def number(self, name: str, default: int | None = None) -> int | None:
        return self.take(name, int, default, "a whole number")

    def flag(self, name: str, default: bool | None) -> bool | None:
        return self.take(name, bool, default, "true or false")

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, or one text."""
        self._known.append(name)
        value = self._left.pop(name, None)
        if value is None:
            return None
        listed = [value] if isinstance(value, str) else value
        fine = isinstance(listed, list) and all(isinstance(item, str) for item in listed)
        must(fine, self.key(name), f"is {_short(value)}, and must be text or a list of texts")
        return tuple(listed)

    def mapping(self, name: str) -> dict[str, str]:
        found = self.take(name, dict, {}, "a table of keys and values")
        for key, value in found.items():
            must(isinstance(value, str | int | float | bool), f"{self.key(name)}.{key}", f"is {_short(value)}, and must be text")
        return {key: _as_text(value) for key, value in found.items()}

    def rows(self, name: str) -> dict[str, tuple[dict[str, Any], ...]]:
        """Lists of rows by the name of a source or table."""
        found: dict[str, tuple[dict[str, Any], ...]] = {}
        for key, value in self.take(name, dict, {}, "a table of lists of rows").items():
            fine = isinstance(value, list) and all(isinstance(row, dict) for row in value)
            must(fine, f"{self.key(name)}.{key}", f"is {_short(value)}, and must be a list of rows")
            found[key] = tuple(value)
        return found

    def span(self, name: str) -> timedelta | None:
        text = self.text(name)
        return None if text is None else parse_span(text, self.key(name))

    def tables(self, name: str) -> Iterable[tuple[str, _Keys]]:
        """``[name.x]`` tables."""
        for key, value in self.take(name, dict, {}, f"tables [{name}.NAME]").items():
            must(isinstance(value, dict), self.key(f"{name}.{key}"), f"must be a table [{name}.{key}]")
            yield key, _Keys(value, self.key(f"{name}.{key}"))

    def listed(self, name: str, label: str) -> Iterable[_Keys]:
        """``[[name]]`` tables, each known by what it has under ``label``."""
        for number, value in enumerate(self.take(name, list, [], f"a list of tables [[{name}]]"), 1):
            must(isinstance(value, dict), self.key(name), f"must be a list of tables [[{name}]]")
            known = value.get(label)
            yield _Keys(value, self.key(f"{name}.{known if isinstance(known, str) and known else number}"))

    def done(self) -> None:
        left = ", ".join(map(repr, self._left))
        must(not self._left, self.at or "the file", f"has unknown keys {left}; known are {', '.join(sorted(self._known))}")


def parse_span(text: str, key: str) -> timedelta:
    """A span of time such as ``30s``, ``10m`` or ``1d12h``."""
    found = span_of(text)
    must(found is not None, key, f"is {text!r}, and must be a span of time such as '30s', '10m', '2h' or '1d12h'")
    assert found is not None
    return found


def _pipeline(keys: _Keys, directory: Path, parameters: Mapping[str, Parameter]) -> PipelineSpec:
    name, lake = keys.needed("name"), keys.text("lake", "lake")
    sources = tuple(_source(table, name) for name, table in keys.tables("sources"))
    steps = tuple(_step(each_keys, directory) for each_keys in keys.listed("steps", "name"))
    outputs = tuple(_output(each_keys) for each_keys in keys.listed("outputs", "table"))
    maintenance = tuple(_maintenance(each_keys) for each_keys in keys.listed("maintenance", "name"))
    isolation, retries, spark = keys.text("isolation", "snapshot"), keys.number("retries", 10), keys.mapping("spark")
    lineage = keys.text("lineage")
    tests = tuple(_sample_test(each_keys) for each_keys in keys.listed("tests", "name"))
    keys.done()
    return PipelineSpec(
        name, lake or "lake", sources, steps, outputs, maintenance, isolation, retries, spark, directory, parameters, tests, lineage  # type: ignore[arg-type]  # checked there
    )  # fmt: skip


def _sample_test(keys: _Keys) -> SampleTest:
    name, fails = keys.needed("name"), keys.text("fails")
    return _finished(keys, SampleTest, name, keys.rows("given"), keys.rows("before"), keys.rows("expect"), fails)


def _source(keys: _Keys, name: str) -> Source:
    files, table = keys.texts("files"), keys.text("table")
    must((files is None) != (table is None), keys.at, "needs either files or table, and not both")
    return _table(keys, name, table) if table is not None else _files(keys, name, files or ())


def _files(keys: _Keys, name: str, files: tuple[str, ...]) -> FileSource:
    kind = keys.text("format") or _format_of(files)
    must(kind is not None, keys.key("format"), "is missing and cannot be derived from the file names; it is 'csv', 'json' or 'parquet'")
    return _finished(
        keys,
        FileSource,
        name,
        files,
        kind,
        schema=keys.text("schema"),
        options=keys.mapping("options"),
        max_files=keys.number("max_files"),
        order=keys.text("order", "name"),
        changed=keys.text("changed", "fail"),
        min_age=keys.span("min_age") or timedelta(0),
        file_column=keys.text("file_column"),
        quarantine=keys.text("quarantine"),
        rescued=keys.text("rescued"),
        storage=keys.mapping("storage"),
    )


def _format_of(files: tuple[str, ...]) -> str | None:
    endings = {Path(file).suffix.lstrip(".").lower() for file in files}
    known = {"jsonl": "json", "ndjson": "json", "parquet": "parquet", "csv": "csv", "json": "json"}
    return known.get(endings.pop()) if len(endings) == 1 else None


def _table(keys: _Keys, name: str, table: str) -> TableSource:
    return _finished(
        keys,
        TableSource,
        name,
        table,
        keys.text("read", "changes"),
        keys.text("start", "beginning"),
        keys.number("max_versions"),
        keys.flag("trigger", None),
    )


def _step(keys: _Keys, directory: Path) -> Step:
    name, sql, file = keys.needed("name"), keys.text("sql"), keys.text("sql_file")
    must(sql is None or file is None, keys.at, "has both sql and sql_file")
    if file is not None:
        try:
            sql = (directory / file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{keys.key('sql_file')} cannot be read ({error}).", argument=keys.key("sql_file")) from None
    function, inputs = keys.text("python"), keys.texts("inputs")
    expect = tuple(_expectation(each_keys) for each_keys in keys.listed("expect", "name"))
    return _finished(keys, Step, name, sql, function, inputs, expect)


def _expectation(keys: _Keys) -> Expectation:
    name, check = keys.needed("name"), keys.needed("check")
    otherwise, quarantine = keys.text("otherwise", "warn"), keys.text("quarantine")
    return _finished(keys, Expectation, name, check, otherwise, quarantine)


def _output(keys: _Keys) -> Output:
    table, source = keys.needed("table"), keys.needed("from")
    return _finished(
        keys,
        Output,
        table,
        source,
        keys.text("mode", "append"),
        on=keys.texts("on") or (),
        where=keys.text("where"),
        matched=keys.text("matched", "update"),
        not_matched=keys.text("not_matched", "insert"),
        update=keys.texts("update") or (),
        primary_key=keys.texts("primary_key") or (),
        stable_row_ids=keys.flag("stable_row_ids", True) is not False,
        sequence=keys.text("sequence"),
    )


def _maintenance(keys: _Keys) -> Maintenance:
    name, kind = keys.needed("name"), keys.needed("kind")
    return _finished(
        keys,
        Maintenance,
        name,
        kind,
        keys.texts("tables") or (),
        keys.span("every"),
        keys.number("min_fragments", 2),
        keys.text("column"),
        keys.text("type", "BTREE") or "BTREE",
        keys.span("older_than"),
        keys.number("keep_snapshots"),
    )


def _finished(keys: _Keys, kind: Callable[..., T], *values: Any, **named: Any) -> T:
    try:
        made = kind(*values, **named)
    except InvalidInput:
        keys.done()  # a key that nobody knows is the better explanation of one that is missing
        raise
    keys.done()
    return made


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
