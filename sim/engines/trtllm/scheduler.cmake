# TensorRT-LLM's schedulers over the KV block pool.
oomcast_part(trtllm_scheduler
  SOURCES scheduler.cpp scheduler_host.cpp scheduler_step.cpp
  LINKS oomcast_core oomcast_kv)
