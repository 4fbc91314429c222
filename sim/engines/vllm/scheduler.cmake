# vLLM's V1 scheduler over the KV block pool.
oomcast_part(vllm_scheduler
  SOURCES scheduler.cpp scheduler_kv.cpp scheduler_kv_cache.cpp scheduler_kv_lookup.cpp
          scheduler_lane.cpp scheduler_output.cpp scheduler_rules.cpp scheduler_step.cpp
  LINKS oomcast_core oomcast_kv)
