"""Tables of the oldest writers, before a manifest said which data format it has: read in full, never written by us.

What stands in their manifests cannot be carried over. Lance 0.7 wrote no row counts at all and 0.8 some that are wrong, beside no word of
who wrote them; and the values of dictionary columns lie in the manifest's own file, by absolute offset. A version that we made would
count wrongly or be unreadable. One commit by pylance brings counts up to date.
"""

from __future__ import annotations

from tiltyard.errors import UnsupportedFeature
from tiltyard.format.manifest import Manifest


def is_legacy(manifest: Manifest) -> bool:
    """Whether its data files are of the first format; before there was a second one, manifests did not say."""
    return manifest.data_format is None or manifest.data_format.version.startswith("0.")


def has_sure_counts(manifest: Manifest) -> bool:
    """Whether the numbers of rows in it can be relied on: writers that gave wrong ones did not give their name either."""
    return manifest.data_format is not None or manifest.writer is not None


def check_carried_over(manifest: Manifest) -> None:
    """Refuses to build on a version of which something would be lost.

    Raises:
        UnsupportedFeature: naming what.
    """
    if not is_legacy(manifest):
        return
    if not has_sure_counts(manifest) and len(manifest.fragments):
        raise UnsupportedFeature(
            "A writer of the first releases of Lance made this version, and its row counts are missing or wrong.",
            feature="row counts of lance 0.8 and before",
            writing=True,
            advice="Commit once with pylance, which counts the rows again, or copy the table into a newer format.",
        )
    for field in manifest.fields:
        if field.dictionary is not None and field.dictionary[1]:
            raise UnsupportedFeature(
                f"The values of dictionary column {field.name} are in the manifest, where a new version cannot keep them.",
                feature="dictionaries of the first data format",
                writing=True,
                advice="Write with pylance, or copy the table into a newer format.",
            )
