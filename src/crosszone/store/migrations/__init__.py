"""The revisions of the tables, oldest first; each is written once and never changed."""
