# vLLM's V1 scheduler over the KV block pool.
oomcast_part(vllm_scheduler SEPARATE
  SOURCES connector_nixl.cpp connector_offload.cpp connector_offload_step.cpp kv_connector.cpp
          scheduler.cpp scheduler_admission.cpp scheduler_kv.cpp scheduler_kv_cache.cpp scheduler_kv_lookup.cpp
          scheduler_lane.cpp scheduler_output.cpp scheduler_rules.cpp scheduler_step.cpp
          scheduler_transfer.cpp
  LINKS oomcast_core oomcast_kv)
