"""Stands in for rfc3987-syntax, which jsonschema takes if it can be imported, to check strings of the format "iri".

Its import builds a parser, which takes over a second of every process that reads a notebook: pytest, JupyterLab and
Sphinx.  No schema of notebooks has that format.
"""

raise ImportError("left out of the tests: nothing here checks internationalized addresses, and its import is slow")
