"""Resource providers, what they have and who holds it: the one place where claims are decided.

A request's way: an *endpoint* hands its message to one function of a *deed*, in one transaction with its stored answer
(``endpoint_basis``). The deed reads what there is, says as ``allocations.Change`` what each consumer shall hold, and
``allocations.write`` locks, compares, counts and writes it: the only way by which anything is held or given up.

=====================  ===============================================================================================
endpoints              ``endpoint`` (claims, allocations), ``provider_endpoint``, ``name_endpoint``, ``group_endpoint``,
                       ``candidate_endpoint``, ``reshape_endpoint``, ``heal_endpoint``, ``inspection``;
                       ``endpoint_basis``. They are reached over the bus (``service``), in the process (``direct``)
                       or over HTTP (``http/``)
deeds on consumers     ``puts``, ``claims``, ``swaps``, ``moves``, ``move_ends``, ``deletes``, ``heals``
whose is what          ``given_up``, ``shares``, ``foreign``, ``residues``, ``isolated_groups``
the write              ``allocations``, ``capacity`` (the judge), ``group_rules``
rows                   ``consumers``, ``tombstones``, ``providers``, ``groups``, ``placed``, ``seqs``; ``schema``
deeds on providers     ``new_providers``, ``trees``, ``inventories``, ``traits``, ``aggregates``, ``links``,
                       ``host_aggregate_links``, ``reports``; ``reshapes/``
names                  ``names``, ``class_renaming``
what is shown          ``consumer_list``, ``claim_list``, ``provider_list``, ``provider_outlines``, ``matching``,
                       ``usages``, ``service_list``, ``audit``; ``candidates/``
hosts and cells        ``cells``, ``declared_down``, ``disabled_hosts``
kept in order          ``reconciler``, ``reconciled``, ``pruning``, ``feed``, ``recounts``, ``upgrade``,
                       ``restoring``; ``versions/``
bounds                 ``search_budget`` (of the searches of one request)
under all of it        ``bulk`` (many rows in few statements), ``races`` (a new transaction where others were faster)
for operators          ``commands/``
=====================  ===============================================================================================
"""
