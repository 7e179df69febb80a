"""Lends what sglang asks of a GPU machine to every Python process that finds this folder."""

import lent

lent.lend()
