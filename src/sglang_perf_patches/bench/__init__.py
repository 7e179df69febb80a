"""Comparisons on an operator's own machine, and how their results are shown."""
