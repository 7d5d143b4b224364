"""Planning problems of published planners, with what they publish."""
