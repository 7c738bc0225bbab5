"""Speed against quality: what every method and setting gains, and what its pictures lose. See `command`."""
