"""What a patch would do to a sglang tree, judged from its source alone."""
