"""`just release X.Y.Z`: from a clean tree to artefacts that were tried, a commit and a tag. It uploads nothing.

`plan` has the decisions without I/O, `artefacts` builds and compares, `trial` uses the wheels in an empty environment,
`__main__` does these in turn in a clone, and brings the commit and the tag into the repository when all went well."""
