"""HTML report of a sweep: text (`answer`, `content`) and encoded data (`page`, `columns`)."""
