"""Quota at the edge: where rows are kept, how requests share one write, and what their authors are told."""
