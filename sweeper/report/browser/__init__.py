"""HTML report of a sweep: `content` holds the data, `page.html` the text."""
