"""Standard output and standard error that take any text, and that may be gone.

A log or a terminal need not be UTF-8. What its encoding lacks is written in ASCII: ``<=`` for ≤,
``gamma`` for γ, ``^k`` for a raised k, and ``\\xe9`` for what has no such name.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from typing import Any

STAND_INS = {
    "≤": "<=", "≥": ">=", "⪯": "<=", "⪰": ">=", "≻": ">", "≈": "~", "±": "+/-", "×": "x", "·": "*",
    "√": "sqrt", "∞": "inf", "∇": "grad ", "∈": " in ", "½": "1/2", "…": "...", "–": "-", "—": "-",
    "−": "-", "→": "->", "←": "<-", "↦": "->", "\u0302": "-hat", "\u0303": "-tilde",
    "\u0304": "-bar", "\u0307": "-dot",
}  # fmt: skip
RAISED, LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ᵀᴴᵏᵛⁿʳʷ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ᵢ"
PIECES = re.compile(f"[{RAISED}]+|[{LOWERED}]+|[^\x00-\x7f]")
NOBODY_READS = 141  # what a shell says of a program that SIGPIPE ended


def encodable(words: str, encoding: str, errors: str = "strict") -> str:
    """The text, with stand-ins for what the encoding lacks."""

    def lacks(piece: str) -> bool:
        try:
            piece.encode(encoding, errors)
        except UnicodeEncodeError:
            return True
        return False

    def stand_in(found: re.Match[str]) -> str:
        return _stand_in(found[0]) if lacks(found[0]) else found[0]

    return PIECES.sub(stand_in, words) if lacks(words) else words


def _stand_in(piece: str) -> str:
    if piece[0] in RAISED + LOWERED:
        plain = unicodedata.normalize("NFKD", piece).replace("−", "-")
        return ("^" if piece[0] in RAISED else "_") + plain
    kind = unicodedata.name(piece, "").split()
    if kind[:1] == ["GREEK"] and kind[2:3] == ["LETTER"] and len(kind) == 4:
        letter = kind[3].replace("LAMDA", "LAMBDA")
        return letter.capitalize() if kind[1] == "CAPITAL" else letter.lower()
    return STAND_INS.get(piece) or piece.encode("ascii", "backslashreplace").decode("ascii")


class Stream:
    """A text stream that takes any text; what it cannot take any more is told, or not missed.

    Args:
        stream: where the text goes.
        needed: whether the work is for nothing where it cannot be written: of progress on
            standard error it is not.

    Raises SystemExit where nobody reads any more, and OSError, by name, where there is no room.
    """

    def __init__(self, stream: Any, needed: bool) -> None:
        self._stream, self._needed = stream, needed

    def write(self, words: str) -> int:
        """Write a text."""
        lenient = "surrogateescape"  # names of files that were no text to begin with
        errors = lenient if getattr(self._stream, "errors", None) == lenient else "strict"
        words = encodable(words, getattr(self._stream, "encoding", None) or "utf-8", errors)
        if words:  # click tries with nothing, and does not look whether it went well
            with self._told():
                self._stream.write(words)
        return len(words)

    def flush(self) -> None:
        """Pass on what was written."""
        with self._told():
            self._stream.flush()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())  # for what is left at the end
            if not self._needed:
                return
            if isinstance(error, BrokenPipeError):
                raise SystemExit(NOBODY_READS) from None
            raise OSError(error.errno, error.strerror, "standard output") from None

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # where click writes UTF-8 if the stream is ASCII
            raise AttributeError(name)
        return getattr(self._stream, name)


@contextlib.contextmanager
def any_text() -> Iterator[None]:
    """Within it, whatever is printed can be; streams that were closed lead nowhere."""
    descriptor = 0
    while descriptor <= 2:  # else a file that is opened later takes the place of a closed stream
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    before = sys.stdout, sys.stderr
    if sys.stdout is not None:
        sys.stdout = Stream(sys.stdout, needed=True)
    if sys.stderr is not None:
        sys.stderr = Stream(sys.stderr, needed=False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Within it, a warning of ours is one line for people; those of others are as ever."""
    before = warnings.formatwarning

    def formatted(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
        if category.__module__.partition(".")[0] == "cojax":
            return f"cojax: warning: {message}\n"
        return before(message, category, *where, **more)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = before
