"""The public site: the specification as a book, with who passes what; its pages are Markdown for MkDocs."""
