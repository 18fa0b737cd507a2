"""Checks of a commit against the version below it: idempotency keys, field ids, parents.

Work that may be sent again is committed once: its sender numbers it, upwards. The number travels as a property of the transaction and is
kept in the table's config by the very commit that brings the rows, so that the two cannot come apart: whatever version is read, built on,
restored or left by a cleanup, its config tells exactly which pieces its rows are made of. The commit loop looks at the version right below
the one it creates, so of two that bring the same number at once the second finds the first, however the race goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tiltyard.errors import AlreadyCommitted, InvalidInput, RetryableConflict, TiltyardError, Winner
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.digests import SEAL, UNSEALED
from tiltyard.format.manifest import Manifest, check_buildable
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import parse_transaction_name
from tiltyard.format.values import Field, WriterVersion
from tiltyard.transaction.apply.coverage import indices_of
from tiltyard.transaction.apply.next_manifest import Stamp, apply
from tiltyard.transaction.footprint import FRAGMENT_REUSE
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.operations import Append, Overwrite, Restore, Rewrite
from tiltyard.transaction.system_indices import singleton
from tiltyard.transaction.transaction import Transaction

PREFIX: Final = "tiltyard.once."
"""What the names of such properties and config keys begin with; the rest says who numbers the work."""
_DIGITS: Final = 19
_LONGEST_SOURCE: Final = 1000


def mark(source: str, number: int) -> dict[str, str]:
    """A property that has a commit fail with ``AlreadyCommitted`` if this number of the source's, or a higher one, is in the table."""
    if not isinstance(source, str) or not source.strip() or len(source) > _LONGEST_SOURCE or "\0" in source:
        raise InvalidInput(
            "The source of an idempotency key needs a name.",
            argument="source",
            advice=f"Use a text of 1 to {_LONGEST_SOURCE:,} characters.",
        )
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidInput(f"The number of an idempotency key is a whole number of at least 0, not {number!r}.", argument="number")
    return {PREFIX + source: str(number)}


def marks_in(properties: Mapping[str, str]) -> dict[str, str]:
    """Those among the properties of a transaction that its table is to remember."""
    return {name: value for name, value in properties.items() if name.startswith(PREFIX)}


def last_number(config: Mapping[str, str], source: str) -> int | None:
    """The highest number of a source's that a version has; None for none."""
    return _number(PREFIX + source, config[PREFIX + source]) if PREFIX + source in config else None


def check_base(mine: Transaction, base: Manifest, rebased_over: Sequence[Winner]) -> None:
    """Refuses to put a transaction on a version that cannot bear it, or that has its work already.

    Raises:
        UnsupportedFeature: we cannot build on that version.
        InvalidInput, RetryableConflict: its field ids are taken.
        AlreadyCommitted: the version has its work.
    """
    check_buildable(base)
    check_field_ids(mine, base, rebased_over)
    check_not_done(mine.properties, base.config)


def check_not_done(properties: Mapping[str, str], config: Mapping[str, str]) -> None:
    """Refuses work that the version with this config has.

    Raises:
        AlreadyCommitted: naming it.
    """
    for name, value in marks_in(properties).items():
        source, number = name[len(PREFIX) :], _number(name, value)
        last = last_number(config, source)
        if last is not None and last >= number:
            raise AlreadyCommitted(
                f"Number {number} of {source[:80]!r} was committed before (the table is at {last}).",
                source=source,
                number=number,
                last=last,
            )


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > _DIGITS:
        raise InvalidInput(f"{name[:80]!r} is not a number: {value[:40]!r}.", argument=name, advice="Set it to the last number done.")
    return int(value)


def meet_schema(mine: Transaction, before: tuple[Field, ...], theirs: CreatedVersion, dropped: frozenset[int]) -> frozenset[int]:
    """Raises where a field id of ours came to mean another column; returns the ids that were dropped so far.

    A column that is dropped together with all its files sets its id free, and the next new column may get it. Rows that were written
    for the old column would then be read as the new one.
    """
    after = theirs.manifest.fields
    if before == after or not isinstance(mine.operation, Append):
        return dropped
    now = {field.id for field in after}
    dropped |= {field.id for field in before} - now
    written = {number for fragment in mine.operation.fragments for file in fragment.files for number in file.fields}
    names = [field.name for field in after if field.id in dropped & written]
    problem = f"{', '.join(names[:3])} took the id of a dropped column that the rows have" if names else None
    if written and not written & now:
        problem = "all columns of the new rows were dropped"
    if problem:
        winner = theirs.as_winner()
        raise RetryableConflict(
            f"Append read version {mine.read_version}, then came {winner}: {problem}.",
            operation=mine.operation.name,
            read_version=mine.read_version,
            winners=[winner],
            sample=names,
        )
    return dropped


def check_field_ids(mine: Transaction, base: Manifest, rebased_over: Sequence[Winner]) -> None:
    """On tables that never reuse a field id, refuses an overwrite whose ids were given out meanwhile."""
    operation, highest = mine.operation, base.max_allocated_field_id
    if highest is None or not isinstance(operation, Overwrite) or all(field.id > highest for field in operation.schema):
        return
    what = f"This table never reuses a field id, and ids up to {highest} are assigned."
    if not rebased_over:
        raise InvalidInput(what, argument="schema", advice="Give the new fields higher ids.")
    raise RetryableConflict(what, operation=operation.name, read_version=mine.read_version, winners=rebased_over)


PARENT: Final = "tiltyard.parent"
"""The property that names the transaction of the version below. The copy inside the manifest has it right; the transaction file, which is
not written again for each attempt, names the version that the first one was put on."""

_STAMP: Final = Stamp(0, WriterVersion("", ""), "")


def with_parent(transaction: Transaction, base: ManifestFile) -> Transaction:
    """The transaction with the id of the one that made the version it is put on, for the copy inside the manifest."""
    parent = transaction_id(base)
    return replace(transaction, properties={**transaction.properties, PARENT: parent}) if parent else transaction


def to_be_sealed(transaction: Transaction, base: ManifestFile | None = None) -> Transaction:
    """The transaction as a version tells of it: with room for the digest of its file, and the one that made the version below."""
    parent = transaction_id(base) if base is not None else ""
    return replace(transaction, properties={**transaction.properties, **({PARENT: parent} if parent else {}), SEAL: UNSEALED})


def without_marks(transaction: Transaction) -> Transaction:
    """The transaction without what depends on the version that it is put on: what its copies have in common."""
    own = {name: value for name, value in transaction.properties.items() if name not in (PARENT, SEAL)}
    return replace(transaction, properties=own)


def transaction_id(file: ManifestFile) -> str:
    """Who made a version; nothing where it does not say."""
    if file.transaction is not None:
        return pb.Transaction.FromString(file.transaction).uuid
    named = parse_transaction_name(file.manifest.transaction_file)
    return named[1] if named else ""


def fits(later: CreatedVersion, below: ManifestFile) -> bool:
    """Whether a version can have been put on the one that has the number below it. Only a version of ours can tell that it was not."""
    parent, made_by = later.transaction.properties.get(PARENT), transaction_id(below)
    return parent is None or not made_by or parent == made_by


def follows(later: CreatedVersion, made: Manifest, made_by: str) -> bool | None:
    """Whether the later version was put on ``made``, the work of the transaction ``made_by``. None where that cannot be told.

    Ours say so. Of a stock writer's it is certain where the version is what its operation makes of ``made``; compared is what tells
    versions apart, not how their writers put it.
    """
    parent = later.transaction.properties.get(PARENT)
    if parent is not None:
        return parent == made_by
    operation = later.transaction.operation
    if isinstance(operation, Restore):
        return None  # whatever was there before it, it is the same
    reuse = singleton(later.manifest, FRAGMENT_REUSE) if isinstance(operation, Rewrite) else None
    try:
        expected = apply(operation, made, _STAMP, reuse=reuse)
    except TiltyardError:
        return None
    return True if _outline(expected) == _outline(later.manifest) else None


def _outline(manifest: Manifest) -> object:
    return (
        [(fragment.id, [file.path for file in fragment.files], fragment.deletion_file) for fragment in manifest.fragments],
        [(field.id, field.name, field.logical_type) for field in manifest.fields],
        dict(manifest.config),
        dict(manifest.table_metadata),
        dict(manifest.schema_metadata),
        sorted((index.uuid, index.fragment_bitmap or b"") for index in indices_of(manifest)),
        sorted(path.path for path in manifest.base_paths),
        manifest.max_fragment_id,
    )
