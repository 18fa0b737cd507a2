"""What Spark's readers of files can be told in a pipeline. Options that nobody knows, or that would leave out rows, are refused.

A run marks each file as consumed, whole. So options that choose among files or forgive what cannot be read of one are none of a pipeline's.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from tiltyard.errors import InvalidInput

_TEXT: Final = frozenset(
    {
        "charset", "columnNameOfCorruptRecord", "dateFormat", "enableDateTimeParsingFallback", "encoding", "lineSep", "locale", "mode",
        "multiLine", "samplingRatio", "timeFormat", "timeZone", "timestampFormat", "timestampNTZFormat",
    }
)  # fmt: skip

KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "csv": _TEXT
    | {
        "charToEscapeQuoteEscaping", "comment", "delimiter", "emptyValue", "escape", "header", "ignoreLeadingWhiteSpace",
        "ignoreTrailingWhiteSpace", "inferSchema", "inputBufferSize", "maxCharsPerColumn", "maxColumns", "nanValue", "negativeInf",
        "nullValue", "positiveInf", "preferDate", "quote", "sep", "unescapedQuoteHandling",
    },
    "json": _TEXT
    | {
        "allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers", "allowNumericLeadingZeros", "allowSingleQuotes",
        "allowUnquotedControlChars", "allowUnquotedFieldNames", "dropFieldIfAllNull", "inferTimestamp", "prefersDecimal",
        "primitivesAsString",
    },
    "parquet": frozenset({"datetimeRebaseMode", "int96RebaseMode", "mergeSchema"}),
}  # fmt: skip
"""Options that a source takes, by format."""

REFUSED: Final[Mapping[str, str]] = {
    "enforceSchema": "columns are matched by the names in the header; set header = 'false' for files without one",
    "columnPruning": "files are read whole",
    "singleVariantColumn": "rows are read as columns",
    "explodeEmbeddedArray": "rows are read as objects",
    "useUnsafeRow": "it is internal to Spark",
    "pathGlobFilter": "files counts each file it names as consumed",
    "modifiedBefore": "files counts each file it names as consumed; see min_age",
    "modifiedAfter": "files counts each file it names as consumed; see min_age",
    "recursiveFileLookup": "use ** in files instead",
    "ignoreMissingFiles": "a file that is gone would count as consumed",
    "ignoreCorruptFiles": "a file that cannot be read would count as consumed",
    "compression": "it is for writing; the file's name tells how to read it",
    "codec": "it is for writing; the file's name tells how to read it",
    "parquet.compression": "it is for writing",
    "escapeQuotes": "it is for writing",
    "quoteAll": "it is for writing",
    "extension": "it is for writing",
    "ignoreNullFields": "it is for writing",
    "pretty": "it is for writing",
    "sortKeys": "it is for writing",
    "writeNonAsciiCharacterAsCodePoint": "it is for writing",
}
"""Options of Spark that a source does not take, and why."""


def check_reader_options(source: str, kind: str, options: Mapping[str, str]) -> None:
    """Refuses options that are not of this format or would lose rows; case does not matter.

    Raises:
        InvalidInput: naming the option.
    """
    known = {name.lower(): name for name in KNOWN[kind]}
    refused = {name.lower(): why for name, why in REFUSED.items()}
    for name in options:
        key = f"sources.{source}.options.{name}"
        if name.lower() in known:
            continue
        if why := refused.get(name.lower()):
            raise InvalidInput(f"{key} is not taken: {why}.", argument=key)
        near = get_close_matches(name.lower(), known, n=1)
        advice = f"Did you mean {known[near[0]]}?" if near else f"Known: {', '.join(sorted(KNOWN[kind]))}"[:200]
        raise InvalidInput(f"{key} is not an option that Spark has for {kind}.", argument=key, advice=advice)
