#include "sim/engines/sglang/stage_startup.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "sim/comm/all_reduce.hpp"
#include "sim/comm/nccl.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/graph_capture.hpp"
#include "sim/engines/sglang/transfer_buffers.hpp"

namespace oomcast::sglang {
namespace {

// SGLang switches NCCL's cuMem and NVLS off unless asked.
comm::NcclSettings nccl_settings(const Deployment& deployment) {
  comm::NcclSettings settings;
  const bool wanted =
      deployment.launch.on("enable-nccl-nvls") || deployment.launch.on("enable-symm-mem");
  settings.cumem =
      deployment.launch.variable("NCCL_CUMEM_ENABLE").value_or(wanted ? "1" : "0") != "0";
  settings.nvls =
      deployment.launch.variable("NCCL_NVLS_ENABLE").value_or(wanted ? "1" : "0") != "0";
  return settings;
}

// What has been measured of a communicator beyond what is modelled.
Buffer rest_of_communicator(const Deployment& deployment, const comm::RankGroup& group) {
  const std::string_view link = group.link == comm::Link::kPcie ? "pcie" : "nvswitch";
  const auto& rows = deployment.rules.communicator_rests;
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const CommunicatorRest& one) {
    return one.link == link && (one.compute == 0 || one.compute == deployment.gpu.compute_major);
  });
  const Bytes bytes = row == rows.end() ? Bytes{0} : row->base + row->peer * (group.ranks - 1);
  return {"communicator beyond ring and tree", "measured", bytes, Lifetime::kPersistent,
          Backing::kDriver};
}

std::vector<Buffer> communicator_buffers(const Deployment& deployment) {
  std::vector<Buffer> buffers;
  for (const int ranks : {deployment.tp, deployment.pp}) {
    if (ranks > 1) {
      const comm::NcclMemory nccl = comm::nccl_memory(comm::group_on_node(deployment.gpu, ranks),
                                                      nccl_settings(deployment), {});
      append(buffers, nccl.at_creation);
      append(buffers, nccl.at_first_collective);  // a barrier follows at once
    }
  }
  if (deployment.tp > 1) {
    comm::GroupSetup setup;
    setup.engine.engine = comm::Engine::kSglang;
    setup.engine.version = deployment.launch.version;
    setup.custom = deployment.custom_all_reduce;
    const comm::RankGroup group = comm::group_on_node(deployment.gpu, deployment.tp);
    append(buffers, comm::tensor_group_buffers(group, setup));
    buffers.push_back(rest_of_communicator(deployment, group));
  }
  return buffers;
}

constexpr Bytes kFirstTensor{16};

}  // namespace

StageState::StageState(const Deployment& deployment, int stage_number)
    : RankState(deployment.device_total(), stage_number * deployment.tp, deployment.tp,
                deployment.allocator_settings),
      stage(stage_number),
      sizes(cache_sizes(deployment, stage_number)) {}

StageStartup::StageStartup(const Deployment& deployment, int stage)
    : deployment_(deployment), state_(deployment, stage), card_(state_) {}

bool StageStartup::measure() { return context() && communicators() && load() && size_pools(); }

bool StageStartup::serve(const CachePlan& plan) {
  state_.plan = plan;
  return kv() && capture() && warm_up() && ready();
}

// ---- phases
// ---------------------------------------------------------------------------------------

// Free memory as SGLang shows it before loading already lacks the context and communicators; what
// the card lacks beyond them belongs to others.
bool StageStartup::context() {
  card_.begin("context");
  Bytes others = deployment_.used_by_others();
  Bytes own = deployment_.gpu.context_bytes;
  if (deployment_.card.free_at_start) {
    own = std::min(own, others);
    others -= own;
  }
  return card_.outside(Leaf::kSystemContext, Backing::kDriver, others) &&
         card_.outside(Leaf::kSystemContext, Backing::kContext, own) && card_.end();
}

bool StageStartup::communicators() {
  card_.begin("communicators");
  const bool counted = deployment_.card.free_at_start.has_value();
  if (deployment_.assumed.communicators || counted) {
    if (!card_.outside(Leaf::kCommNccl, Backing::kDriver,
                       counted ? Bytes{0} : *deployment_.assumed.communicators)) {
      return false;
    }
  } else {
    if (!card_.outside_all(Leaf::kCommNccl, communicator_buffers(deployment_)) ||
        (deployment_.tp > 1 && !card_.correct(Leaf::kCommNccl, Backing::kDriver,
                                              deployment_.assumed.residuals.collectives))) {
      return false;
    }
  }
  if (!card_.allocate(Leaf::kModelBuffers, kFirstTensor)) {
    return false;
  }
  state_.free.before = counted ? *deployment_.card.free_at_start : measured_free();
  return card_.end();
}

bool StageStartup::load() {
  card_.begin("load");
  if (!run(expert_locations(deployment_))) {
    return false;
  }
  const Bytes before = measured_free();
  loaded_.clear();
  weights_ = load_sequence(deployment_, state_.stage);
  if (!run(weights_) ||
      !card_.outside(Leaf::kSystemContext, Backing::kContext, deployment_.rules.load_modules) ||
      !card_.correct(Leaf::kSystemContext, Backing::kContext, deployment_.assumed.residuals.load)) {
    return false;
  }
  state_.after_load = measured_free();
  state_.weights = before - state_.after_load;
  state_.after_drafts = state_.after_load;
  if (deployment_.rules.draft_before_pool && deployment_.loads_draft(state_.stage)) {
    if (!extend_rope_tables() || !load_draft()) {
      return false;
    }
    state_.after_drafts = measured_free();
  }
  return card_.end();
}

bool StageStartup::load_draft() {
  const LoadSequence draft = draft_sequence(deployment_, state_.stage);
  std::vector<CardMemory::Tensor> made;
  for (const LoadStep& step : draft.steps) {
    const auto tensor = card_.make(step.leaf, step.bytes);
    if (!tensor) {
      return false;
    }
    made.push_back(*tensor);
  }
  for (const std::uint32_t tensor : draft.dropped) {
    draft_ends_.push_back(made[tensor]);
  }
  return true;
}

bool StageStartup::make_draft_pools() {
  return card_.allocate_all(draft_pools(deployment_, state_.plan, state_.stage));
}

// The draft takes the target's embedding and head in place of its own.
void StageStartup::drop_draft_ends() {
  for (const CardMemory::Tensor& tensor : draft_ends_) {
    state_.memory.free(tensor);
  }
  if (!draft_ends_.empty()) {
    state_.memory.empty_cache();
  }
  draft_ends_.clear();
}

bool StageStartup::size_pools() {
  card_.begin("kv");
  if (!extend_rope_tables()) {
    return false;
  }
  state_.free.after = deployment_.assumed.available_after_load.value_or(measured_free());
  const auto budget = cache_budget(deployment_, state_.sizes, state_.free);
  if (const auto* refusal = std::get_if<CacheRefusal>(&budget)) {
    card_.fail(refusal->kind, Leaf::kKvPool, refusal->short_by, refusal->message);
    return false;
  }
  const auto plan = cache_plan(deployment_, state_.sizes, std::get<CacheBudget>(budget));
  if (const auto* refusal = std::get_if<CacheRefusal>(&plan)) {
    card_.fail(refusal->kind, Leaf::kKvPool, refusal->short_by, refusal->message);
    return false;
  }
  state_.plan = std::get<CachePlan>(plan);
  return true;
}

// A table is lengthened by computing the missing rows and joining both.
bool StageStartup::extend_rope_tables() {
  if (!deployment_.rules.rope_tables_extended || ropes_extended_) {
    return true;
  }
  ropes_extended_ = true;
  const std::int64_t needed = rope_rows_needed(deployment_);
  for (const LoadSequence::RopeTable& table : weights_.tables) {
    if (needed <= table.rows) {
      continue;
    }
    const Bytes half{detail::checked_mul(needed - table.rows, table.columns) * 4 / 2};
    const auto positions = card_.make(Leaf::kModelBuffers, Bytes{(needed - table.rows) * 4});
    const auto angles = card_.make(Leaf::kModelBuffers, half);
    const auto cosines = card_.make(Leaf::kModelBuffers, half);
    const auto sines = card_.make(Leaf::kModelBuffers, half);
    const auto rows = card_.make(Leaf::kModelBuffers, half * 2);
    const auto joined =
        card_.make(Leaf::kModelBuffers,
                   Bytes{detail::checked_mul(needed, table.columns)} * table.element_bytes);
    if (!positions || !angles || !cosines || !sines || !rows || !joined) {
      return false;
    }
    state_.memory.free(loaded_[table.tensor]);
    for (const auto& temporary : {positions, angles, cosines, sines, rows}) {
      state_.memory.free(*temporary);
    }
    loaded_[table.tensor] = *joined;
  }
  return true;
}

bool StageStartup::kv() {
  card_.begin("kv");
  if (!card_.allocate_all(pools(deployment_, state_.plan, state_.stage))) {
    return false;
  }
  state_.kv_pool = kv_pool_bytes(deployment_, state_.plan, state_.stage);
  state_.state_pool = state_pool_bytes(deployment_, state_.plan, state_.stage);
  state_.after_pool = measured_free();
  return (!deployment_.rules.draft_before_pool || make_draft_pools()) && card_.end();
}

// The dispatcher makes its buffer with the first forward pass: the first capture, else the warm-up.
bool StageStartup::exchange_buffers() {
  return card_.outside_all(Leaf::kCommExpert, deployment_.exchange.buffers);
}

bool StageStartup::capture() {
  card_.begin("capture");
  drop_draft_ends();
  if (!deployment_.decode_sizes.empty() && !exchange_buffers()) {
    return false;
  }
  if (!card_.allocate_all(attention_workspaces(deployment_)) ||
      !card_.allocate_all(input_registry(deployment_, state_.plan))) {
    return false;
  }
  const Bytes before = measured_free();
  if (deployment_.assumed.graphs) {
    if (!card_.outside(Leaf::kGraphPool, Backing::kDriver, *deployment_.assumed.graphs)) {
      return false;
    }
    state_.decode_drop = before - measured_free();
    return card_.end();
  }
  GraphCapture graphs(deployment_, state_.stage, state_.plan, state_.memory);
  Bytes left = before;
  const auto drop = [&] {
    const Bytes had = left;
    left = measured_free();
    return had - left;
  };
  const auto prefills = [&] {
    const bool captured = graphs.capture_prefills();
    state_.prefill_drop = captured ? drop() : Bytes{0};
    return captured;
  };
  const auto decodes = [&] {
    const bool captured =
        graphs.capture_decodes() && graphs.capture_drafts() && graphs.correct_decodes();
    state_.decode_drop = captured ? drop() : Bytes{0};
    return captured;
  };
  const bool fits =
      deployment_.rules.prefill_graphs_first ? prefills() && decodes() : decodes() && prefills();
  state_.graphs = graphs.captured();
  card_.seen();
  if (!fits) {
    card_.fail(OutcomeKind::kStartupOom, Leaf::kGraphPool, state_.memory.shortage(),
               fmt::format("Capture cuda graph failed: {}\nPossible solutions:\n1. set "
                           "--mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n2. set "
                           "--cuda-graph-max-bs to a smaller value (e.g., 16)\n",
                           state_.memory.message()));
    return false;
  }
  return card_.end();
}

// The scheduler looks at what is free without emptying the cache.
bool StageStartup::warm_up() {
  card_.begin("warmup");
  if (deployment_.decode_sizes.empty() && !exchange_buffers()) {
    return false;
  }
  // Older releases start the draft once the target is ready, out of what the pools left.
  if (!deployment_.rules.draft_before_pool && (!load_draft() || !make_draft_pools())) {
    return false;
  }
  drop_draft_ends();
  state_.at_end = state_.memory.ledger().device_free();
  return card_.end();
}

bool StageStartup::ready() {
  card_.begin("ready");
  return host_tier() &&
         card_.outside_all(Leaf::kKvTransfer,
                           transfer_buffers(deployment_, state_.plan, state_.sizes)) &&
         card_.end();
}

bool StageStartup::host_tier() {
  auto found = host_pool(deployment_, state_.plan, state_.stage);
  if (const auto* refusal = std::get_if<CacheRefusal>(&found)) {
    card_.fail(refusal->kind, Leaf::kKvTransfer, refusal->short_by, refusal->message);
    return false;
  }
  state_.host = std::move(*std::get_if<std::optional<HostPool>>(&found));
  return !state_.host ||
         (card_.allocate_all(state_.host->staging) &&
          card_.outside_all(Leaf::kKvTransfer,
                            {{"host tier of the KV cache", "host slots x cell", state_.host->bytes,
                              Lifetime::kPersistent, Backing::kPinnedHost}}));
}

bool StageStartup::run(const LoadSequence& sequence) {
  loaded_.clear();
  for (const LoadStep& step : sequence.steps) {
    if (step.kind == LoadStep::Kind::kEmptyCache) {
      state_.memory.empty_cache();
      continue;
    }
    if (step.kind == LoadStep::Kind::kFree) {
      state_.memory.free(loaded_[step.tensor]);
      continue;
    }
    const auto made = card_.make(step.leaf, step.bytes);
    if (!made) {
      return false;
    }
    loaded_.push_back(*made);
  }
  return true;
}

Bytes StageStartup::measured_free() {
  state_.memory.empty_cache();
  return state_.memory.ledger().device_free();
}

}  // namespace oomcast::sglang
