"""Drops columns: a schema without them over the same files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tiltyard.errors import InvalidInput
from tiltyard.format.field_tree import ROOT, FieldTree
from tiltyard.format.flags import check_writable
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.values import Field
from tiltyard.transaction.operations import Project
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns import family_of, find_field, refuse_key, tree_of
from tiltyard.verbs.delete import Committed
from tiltyard.verbs.place import Place
from tiltyard.verbs.rerun import Execution, RerunPolicy, run_verb


def dropped_paths(columns: object) -> tuple[str, ...]:
    """The columns to drop, as a caller names them."""
    given = [columns] if isinstance(columns, str) else columns
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise InvalidInput("Columns to drop are a list of names.", argument="columns")
    paths = tuple(given)
    if not paths:
        raise InvalidInput("Name at least one column to drop.", argument="columns")
    return paths


def drop_columns(
    place: Place, read: ManifestFile, scheme: Scheme, paths: Sequence[str], properties: Mapping[str, str], policy: RerunPolicy
) -> Committed:
    """Drops columns. Their values stay in the files, unread, until those are rewritten."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        check_writable(manifest.reader_flags, manifest.writer_flags)
        place.ensure_safe()
        # Whatever another writer adds meanwhile fits a schema with fewer columns.
        operation = Project(_without(tree_of(manifest), paths), preserves_nullability=True)
        transaction = Transaction(manifest.version, place.runtime.random.uuid(), operation, properties)
        return place.committer.commit(transaction, run.read, run.scheme, run.policy)

    return run_verb(place, read, scheme, execute, policy)


def _without(tree: FieldTree, paths: Sequence[str]) -> tuple[Field, ...]:
    gone: set[int] = set()
    for path in paths:
        found = find_field(tree, path, "columns")
        refuse_key(tree, found, "dropped")
        gone.update(one.id for one in family_of(tree, found))
    # A struct without members can be neither read nor written: it goes with the last of them.
    for one in reversed(tree.fields):
        members = tree.below(one.id)
        if members and all(member.id in gone for member in members):
            gone.add(one.id)
    if all(one.id in gone for one in tree.below(ROOT)):
        raise InvalidInput("A table keeps at least one column.", argument="columns")
    return tuple(one for one in tree.fields if one.id not in gone)
