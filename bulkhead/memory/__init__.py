"""Memory cells: how many bytes each tenant holds, by what code says that it holds, and a quota on that.

cell = current_memory_cell()             the current tenant's, None without a tenant
with cell.charge(len(upload)): …         QuotaExceeded over the quota; a middleware answers 503
cell.scratch["report"] = rendered        a store of the cell's own, against the same quota

It accounts; it does not bound the process. What is allocated without a charge is invisible to it. Options are the
section [memory] of the settings; `cells` is the process's registry.
"""

from bulkhead.memory.cell import Charge, MemoryCell
from bulkhead.memory.current import cells, current_memory_cell
from bulkhead.memory.registry import MemoryCells
from bulkhead.memory.scratch import Scratch

__all__ = ["Charge", "MemoryCell", "MemoryCells", "Scratch", "cells", "current_memory_cell"]
