"""Query the databases of a simulated cloud for what its judge compares."""

# All inventories, with what is counted as used, the sum of allocations, and the capacity.
INVENTORIES = """
SELECT p.uuid, p.name, i.resource_class_id, i.used, COALESCE(a.amount, 0), (i.total - i.reserved) * i.allocation_ratio
  FROM inventories i
  JOIN resource_providers p ON p.id = i.resource_provider_id
  LEFT JOIN (SELECT resource_provider_id, resource_class_id, SUM(used) AS amount
               FROM allocations GROUP BY resource_provider_id, resource_class_id) a
    ON a.resource_provider_id = i.resource_provider_id AND a.resource_class_id = i.resource_class_id
"""
# The providers whose inventories operators have changed.
CHANGED_INVENTORIES = """
SELECT p.uuid
  FROM resource_providers p
  JOIN inventories i ON i.resource_provider_id = p.id
 WHERE i.reserved > 0 OR i.allocation_ratio <> 1
"""
# The total inventory of each host, by class: a reshape never shows it twice or not at all.
TOTALS = """
SELECT h.service_host, c.name, SUM(i.total)
  FROM hosts h
  JOIN resource_providers root ON root.uuid = h.compute_node_uuid
  JOIN resource_providers p ON p.root_provider_id = root.id
  JOIN inventories i ON i.resource_provider_id = p.id
  JOIN resource_classes c ON c.id = i.resource_class_id
 GROUP BY h.service_host, c.name
"""
# Guests for whose attempt the host holds nothing: neither an instance, a migration nor a residue.
UNHELD_GUESTS = """
SELECT g.host, h.up, g.attempt_id, g.instance_uuid
  FROM ({guests}) g
  JOIN hosts h ON h.service_host = g.host
  JOIN resource_providers root ON root.uuid = h.compute_node_uuid
 WHERE NOT EXISTS (
       SELECT 1
         FROM consumers c
         JOIN allocations a ON a.consumer_id = c.id
         JOIN resource_providers p ON p.id = a.resource_provider_id
        WHERE c.accepted_by = g.attempt_id AND p.root_provider_id = root.id)
"""
# Guests that run on the source of a cold migration or a resize, while there is one on the destination.
GUESTS_ON_BOTH_HOSTS = """
SELECT source.instance_uuid, source.host, destination.host
  FROM ({guests}) source
  JOIN consumers held ON held.accepted_by = source.attempt_id AND held.consumer_type = 'MIGRATION'
  JOIN cell_migrations m ON m.uuid = held.uuid AND m.kind IN ('cold-migration', 'resize')
  JOIN consumers i ON i.uuid = source.instance_uuid AND i.accepted_by <> source.attempt_id
  JOIN ({guests}) destination ON destination.attempt_id = i.accepted_by
 WHERE NOT source.stopped
"""
# Work that must end before the verdict.
UNFINISHED = """
SELECT 'operation', uuid FROM conductor_operations WHERE state = 'pending'
UNION ALL SELECT 'operation', uuid FROM cell_operations WHERE state = 'pending'
UNION ALL SELECT 'residue', uuid FROM consumers WHERE consumer_type = 'RESIDUE'
UNION ALL SELECT 'unaccepted claim of', uuid FROM consumers
           WHERE claim_id IS NOT NULL AND accepted_by IS NULL AND id IN (SELECT consumer_id FROM allocations)
UNION ALL SELECT 'changed inventory of', p.uuid
            FROM resource_providers p
            JOIN inventories i ON i.resource_provider_id = p.id
           WHERE i.reserved > 0 OR i.allocation_ratio <> 1
"""
# The seats that their holders have, and the inventories of seats.
SEATS = """
SELECT (SELECT COALESCE(SUM(a.used), 0)
          FROM allocations a
          JOIN consumers c ON c.id = a.consumer_id
          JOIN resource_classes r ON r.id = a.resource_class_id
         WHERE r.name = '{name}' AND c.uuid IN {holders}),
       (SELECT COALESCE(SUM(i.total), 0)
          FROM inventories i JOIN resource_classes r ON r.id = i.resource_class_id WHERE r.name = '{name}')
"""
ROOTS = """
SELECT p.uuid, root.uuid FROM resource_providers p JOIN resource_providers root ON root.id = p.root_provider_id
"""
# The amounts that consumers hold of single providers of flat hosts, of each class that a nested host has in two places.
PARTS_OF_FLAT_HOSTS = """
SELECT h.service_host, c.name, SUM(a.used)
  FROM hosts h
  JOIN resource_providers root ON root.uuid = h.compute_node_uuid
  JOIN allocations a ON a.resource_provider_id = root.id
  JOIN resource_classes c ON c.id = a.resource_class_id
 WHERE c.name IN ('VCPU', 'VGPU')
 GROUP BY h.service_host, c.name, a.consumer_id
"""
NESTED_HOSTS = "SELECT COUNT(DISTINCT root_provider_id) FROM resource_providers WHERE parent_provider_id IS NOT NULL"
PLACEMENTS = """
SELECT DISTINCT c.uuid, root.id
  FROM allocations a
  JOIN consumers c ON c.id = a.consumer_id
  JOIN resource_providers p ON p.id = a.resource_provider_id
  JOIN resource_providers root ON root.id = p.root_provider_id
  JOIN hosts h ON h.compute_node_uuid = root.uuid
 WHERE c.consumer_type = 'INSTANCE'
"""
