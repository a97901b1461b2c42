"""What normalisations share: edits of a definition's stages, and bounds on their values in floats."""
