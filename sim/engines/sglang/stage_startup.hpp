// Startup of one pipeline stage, call for call on its card: what SGLang's scheduler process
// allocates in each phase, and what it measures of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/engines/outcome.hpp"
#include "sim/engines/rank_state.hpp"
#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/host_pool.hpp"
#include "sim/engines/sglang/load.hpp"
#include "sim/engines/sglang/resident.hpp"
#include "sim/engines/startup_card.hpp"

namespace oomcast::sglang {

// The books of one pipeline stage; all its tensor-parallel ranks are alike.
struct StageState : RankState {
  StageState(const Deployment& deployment, int stage_number);

  int stage = 0;
  CacheSizes sizes;
  CachePlan plan;

  // As SGLang measures and logs them.
  FreeMemory free;  // what the pools are sized by
  Bytes weights;    // free memory lost while loading
  Bytes after_load;
  Bytes after_drafts;  // the same once they are loaded too
  Bytes after_pool;
  Bytes at_end;
  Bytes kv_pool;
  Bytes state_pool;
  Bytes prefill_drop;  // free memory lost while capturing prefills, and decodes
  Bytes decode_drop;
  std::optional<HostPool> host;
};

class StageStartup {
 public:
  StageStartup(const Deployment& deployment, int stage);

  // Everything up to the pools' size. False when the startup died; see outcome().
  bool measure();
  // The rest, with the pools that all stages agreed on.
  bool serve(const CachePlan& plan);

  [[nodiscard]] const Outcome& outcome() const { return card_.outcome(); }
  StageState& state() { return state_; }

 private:
  // Phases.
  bool context();
  bool communicators();
  bool load();
  bool size_pools();
  bool kv();
  bool capture();
  bool exchange_buffers();
  bool warm_up();
  bool ready();

  // Pieces of phases.
  bool run(const LoadSequence& sequence);
  bool load_draft();
  bool make_draft_pools();
  void drop_draft_ends();
  bool extend_rope_tables();
  bool host_tier();

  // Free memory as SGLang reads it: the cache is emptied first.
  Bytes measured_free();

  const Deployment& deployment_;
  StageState state_;
  StartupCard card_;
  std::vector<CardMemory::Tensor> loaded_;
  std::vector<CardMemory::Tensor> draft_ends_;  // its own embedding and head
  LoadSequence weights_;
  bool ropes_extended_ = false;
};

}  // namespace oomcast::sglang
