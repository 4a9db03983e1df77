"""Text for messages without what a URL may keep secret: a password, and the parameters that carry signatures.

A name before the password stays, and so does one alone, such as the container of ``abfs://container@account``.
"""

from __future__ import annotations

import re

# Up to the last @ before the path; a password may contain one. Of a URL made a Path, one slash is left.
_PASSWORD = re.compile(r"([A-Za-z0-9+.-]:/{1,2}[^\s/:@'\"]*:)[^\s/'\"]*(?=@)")
# Of a message, the URL ends before punctuation.
_PARAMETERS = re.compile(r"(://[^\s?'\"]*\?)[^\s'\"]*(?<![;:,.)])")


def masked(text: object) -> str:
    """Return text in which each URL has ``***`` in place of its password and of its parameters."""
    return _PARAMETERS.sub(r"\1***", _PASSWORD.sub(r"\1***", str(text)))


def unsecret(error: BaseException) -> BaseException | None:
    """Return an error from which another one is raised; None if its traceback would print a URL's secret."""
    link: BaseException | None = error
    while link is not None:
        if masked(link) != str(link):
            return None
        link = link.__cause__ or link.__context__
    return error
