"""Training on chosen machines: environments, tasks, and zones on one machine."""
