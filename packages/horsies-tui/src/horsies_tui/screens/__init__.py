"""The screens. They read through the source and contain no SQL."""
