"""A scenario with its plan as a document to hand on: Markdown, or one HTML file."""
