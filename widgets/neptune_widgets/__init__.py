"""The explorer's widgets: the Jupyter side of neptune_lab, views of the record that the compiler writes."""
