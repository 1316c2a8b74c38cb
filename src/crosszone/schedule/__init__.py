"""When things happen during one optimizer step: schedules, simulation, timeline, trace."""
