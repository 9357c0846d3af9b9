"""The report of a sweep as a page: what it says (`answer`, `content`) and how it travels.

`columns` packs the results, `page` puts all of it into `page.html`, whose style and scripts stand
beside it; `markup` is the HTML that both parts share.
"""
