"""Charts of the page, as shapes in pixels."""
