"""An answer as sections and tables, built once; the terminal, Markdown and HTML print them."""
