"""Runners: who starts the nodes of a task. All have the functions of `runner.Runner`."""
