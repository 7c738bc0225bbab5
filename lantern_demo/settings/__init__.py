"""Settings: the knobs, their values for a run, and what is recommended."""
