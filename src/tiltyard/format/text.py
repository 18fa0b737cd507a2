"""Text that callers give and that files, and the libraries that read them, can hold."""

from __future__ import annotations

from tiltyard.errors import InvalidInput


def check_text(text: str, what: str, argument: str) -> str:
    """Refuses text that has no encoding, or ends early where others read it as a C string.

    Args:
        text: as the caller gave it.
        what: what it is, as the beginning of a sentence.
        argument: what the caller calls it.

    Raises:
        InvalidInput: half of a surrogate pair, or a NUL character.
    """
    if "\0" in text:
        raise InvalidInput(f"{what} holds a NUL character: {text[:60]!r}.", argument=argument, advice="Remove it.")
    return check_encodes(text, what, argument)


def check_encodes(text: str, what: str, argument: str) -> str:
    """Refuses text that has no encoding; a NUL character is fine in values, which are never C strings."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} holds half of a surrogate pair: {text[:60]!r}.", argument=argument, advice="Remove it.") from error
    return text
