"""Profiles from what other tools measured or listed, so that people who have numbers can plan."""
