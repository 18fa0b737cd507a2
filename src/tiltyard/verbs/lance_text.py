"""What errors of pylance say: their class and their place, which it puts at the beginning and at the end of a text, and the words between.

Its Python classes do not tell: a stream raises ``ArrowInvalid`` for a wrong filter, a damaged file and a store that does not answer. The
words in the middle may be the caller's own SQL or rows, so nothing is decided by them.
"""

from __future__ import annotations

import re
from typing import Final

_LOCATION: Final = re.compile(r",?\s*(?:location: )?\S*/rustc?/\S+\.rs:\d+:\d+")
"""Where in pylance's source an error was made."""
_MADE_IN: Final = re.compile(r"/rust/([a-z-]+)/src/\S+\.rs:\d+:\d+\s*\Z")
_OUTER: Final = re.compile(r"External error: ")
_CLASS: Final = re.compile(
    r"LanceError\((\w+)\)(?=: )|(Not found|Invalid user input|Query Execution error|Encountered corrupt file|Not supported)(?=[: ])"
    r"|(task \d+ panicked) with message"
)
_WORDY: Final = re.compile(
    r"(?:External error|Invalid user input|Query Execution error|Execution error|Schema error|Arrow error|Not supported"
    r"|This feature is not implemented|Error during planning|Error parsing function|Invalid argument error"
    r"|Error applying filter expression to batch|Encountered corrupt file|LanceError\(\w+\)):? "
)
_NESTED: Final = re.compile(r"LanceError\(\w+\): ")
_DEBUGGED: Final = re.compile(r"\(\w+ \{")
_INTERRUPTED: Final = "External error: KeyboardInterrupt:"
_ABORTED: Final = "Task was aborted"


def is_panic(error: BaseException) -> bool:
    """Whether Rust code gave up. A panic arrives as a class that is no Exception and can be imported from nowhere, or as a lost task."""
    if type(error).__name__ == "PanicException":
        return True
    return (isinstance(error, RuntimeError) and str(error) == _ABORTED) or class_of(error).startswith("task ")


def is_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C. Pressed while a stream is read, it comes back as an error of the stream with that name as its whole text."""
    return isinstance(error, Exception) and str(error).strip() == _INTERRUPTED


def class_of(error: BaseException) -> str:
    """The variant of pylance's own error, as the beginning of its text says; empty where it does not."""
    text = str(error)
    outer = _OUTER.match(text)
    found = _CLASS.match(text, outer.end() if outer else 0)
    return (found[1] or found[2] or found[3]) if found else ""


def crate_of(error: BaseException) -> str:
    """The part of pylance that made an error, as the end of its text says; empty where it does not."""
    found = _MADE_IN.search(str(error))
    return found[1] if found else ""


def reason_of(error: BaseException, echoed: str = "") -> str:
    """What an error says, in one line: no places in source files, no names of classes, no repetition of the caller's text."""
    text = _LOCATION.sub("", str(error))
    if echoed:
        for words in (f"Error resolving filter expression {echoed}: ", f"Error optimizing sql filter: {echoed} "):
            text = text.replace(words, "")
        text = text.replace(echoed, echoed[1:-2])
    text = " ".join(text.split())
    while (match := _WORDY.match(text)) is not None:
        text = text[match.end() :]
    text = _DEBUGGED.split(_NESTED.sub("", text))[0]
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
