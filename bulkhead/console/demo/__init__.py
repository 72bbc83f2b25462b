"""`bulkhead demo`: the same load twice, without and with protection, on real servers of its own.

Every number that it prints was measured in that run. The drivers, rich and the plotting library come with the extra
`demo`; nothing else imports this package.
"""
