# SGLang's scheduler over its KV slots and prefix tree.
oomcast_part(sglang_scheduler
  SOURCES kv_cache.cpp radix_host.cpp radix_order.cpp radix_state.cpp radix_tree.cpp radix_window.cpp running_batch.cpp scheduler.cpp
          scheduler_admission.cpp scheduler_decode.cpp scheduler_host.cpp scheduler_output.cpp scheduler_policy.cpp
          scheduler_roles.cpp scheduler_rules.cpp scheduler_steady.cpp
          scheduler_step.cpp
  LINKS oomcast_core oomcast_kv)
