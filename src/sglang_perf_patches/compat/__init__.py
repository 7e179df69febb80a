"""Whether the code of a sglang tree fits each patch, judged from its source alone."""
