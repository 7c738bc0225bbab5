"""Settings: the knobs, and their values for a run."""
