"""Speed against quality: the gain of every method and setting, and the loss of its pictures. See `command`."""
