"""The page and the HTTP API: the same functions as the command line, behind routes under `/api/v1`."""
