"""The base of all errors that an operator sees, each one sentence."""

from __future__ import annotations


class OperatorError(Exception):
    """The request can't be fulfilled; the text says why. The command prints it and exits with 2."""
