"""Bytes to values and back: Lance's layout, without I/O and without policy. Imports nothing of ours but ``errors``.

A manifest file is a ``ManifestFile``: a ``Manifest``, the transaction that made it, and the message both were read from, so that the next
version can be spliced onto it.

Manifests
    ``manifest_file``   the file in ``_versions``: ``decode_manifest_file``, ``encode_manifest_file``
    ``manifest``        ``Manifest`` and its protobuf message; ``manifest_extension`` reads one that adds fragments to another
    ``fragments``       ``FragmentList``: fragments, decoded when they are read
    ``fragment_check``  the quick check of every fragment that is read; ``fragments.check_fragment`` the same, member by member
    ``values``          the frozen values inside: ``Field``, ``DataFile``, ``DataFragment``, ``BasePath``, ``IndexMetadata``
    ``codec``           these values to protobuf and back; ``lance_pb2`` is generated
    ``flags``           feature flags: ``check_readable``, ``check_writable``
Schema
    ``schema``          Arrow schema to fields and back, and whether data fits a table; ``logical_types`` the type strings
    ``fields``          ``FieldTree``: members, paths, ids
    ``keys``            the primary key in the fields' metadata
Rows
    ``deletions``       deletion files; ``roaring`` their bitmaps
    ``row_ids``         stable row ids and row versions; ``segments`` the runs of numbers they are stored as
Names and text
    ``names``           names of manifests and transactions, the latest among them
    ``refs``            tags and branches
    ``digests``         digests of files, and the seal of a version
    ``statistics``      statistics of columns of data files, as values and as bytes
    ``safe_text``       paths and text that a manifest names, which are untrusted

Fails with ``CorruptTable`` (bytes are not what they must be), ``UnsupportedFeature`` (a flag or type we do not know) or ``InvalidInput``
(what a caller gave cannot be stored). Sizes are bounded before anything is allocated.
"""
