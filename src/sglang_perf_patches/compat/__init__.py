"""Whether the code of a sglang tree fits each patch, judged from nothing but its source."""
