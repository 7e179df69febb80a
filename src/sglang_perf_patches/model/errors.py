"""The base of every fault that an operator is told in one sentence."""

from __future__ import annotations


class OperatorError(Exception):
    """What was asked can't be done; the text says why. The command prints it and ends with 2."""
