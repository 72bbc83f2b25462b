"""Tenants at the edge of a web application: who a request is for, and how many of each may be under way.

The four middlewares are `asgi`, `wsgi`, `django` and `flask`, one file each. What they have in common knows no
framework: edge.py (what every middleware does), sources.py (where the tenant comes from), limits.py (how many
requests), answers.py (what a client is told who is not let in).
"""

from bulkhead.web.sources import InvalidTenant

__all__ = ["InvalidTenant"]
