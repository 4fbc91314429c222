#include "sim/engines/sglang/stage_startup.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/comm/all_reduce.hpp"
#include "sim/comm/nccl.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/graph_capture.hpp"
#include "sim/engines/startup_tag.hpp"

namespace oomcast::sglang {
namespace {

// The link between the ranks of one node; groups of this simulator lie within a node.
comm::RankGroup group_of(const Deployment& deployment, int ranks) {
  comm::RankGroup group;
  group.ranks = ranks;
  group.link = deployment.gpu.nvlink_bandwidth > 0 ? comm::Link::kNvSwitch : comm::Link::kPcie;
  group.gpu = &deployment.gpu;
  return group;
}

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

std::vector<Buffer> communicator_buffers(const Deployment& deployment) {
  std::vector<Buffer> buffers;
  for (const int ranks : {deployment.tp, deployment.pp}) {
    if (ranks > 1) {
      const comm::NcclMemory nccl =
          comm::nccl_memory(group_of(deployment, ranks), nccl_settings(deployment), {});
      append(buffers, nccl.at_creation);
      append(buffers, nccl.at_first_collective);  // a barrier follows at once
    }
  }
  if (deployment.tp > 1) {
    comm::GroupSetup setup;
    setup.engine.engine = comm::Engine::kSglang;
    setup.engine.version = deployment.launch.version;
    setup.custom = deployment.custom_all_reduce;
    append(buffers, comm::tensor_group_buffers(group_of(deployment, deployment.tp), setup));
  }
  return buffers;
}

Bytes bytes_on(const std::vector<Buffer>& buffers, Backing backing) {
  return std::accumulate(buffers.begin(), buffers.end(), Bytes{},
                         [backing](Bytes sum, const Buffer& buffer) {
                           return buffer.backing == backing ? sum + buffer.bytes : sum;
                         });
}

constexpr Bytes kFirstTensor{16};

}  // namespace

StageState::StageState(const Deployment& deployment, int stage_number)
    : RankState(deployment.device_total(), stage_number * deployment.tp, deployment.tp,
                deployment.allocator_settings),
      stage(stage_number),
      sizes(cache_sizes(deployment, stage_number)) {}

StageStartup::StageStartup(const Deployment& deployment, int stage)
    : deployment_(deployment), state_(deployment, stage) {}

bool StageStartup::measure() { return context() && communicators() && load() && size_pools(); }

bool StageStartup::serve(const CachePlan& plan) {
  state_.plan = plan;
  return kv() && capture() && warm_up() && end_phase("ready");
}

// ---- phases
// ---------------------------------------------------------------------------------------

// Free memory as SGLang shows it before loading already lacks the context and communicators; what
// the card lacks beyond them belongs to others.
bool StageStartup::context() {
  phase_ = "context";
  Bytes others = deployment_.used_by_others();
  Bytes own = deployment_.gpu.context_bytes;
  if (deployment_.card.free_at_start) {
    own = std::min(own, others);
    others -= own;
  }
  return outside(Leaf::kSystemContext, Backing::kDriver, others) &&
         outside(Leaf::kSystemContext, Backing::kContext, own) && end_phase("context");
}

bool StageStartup::communicators() {
  phase_ = "communicators";
  const bool counted = deployment_.card.free_at_start.has_value();
  if (deployment_.assumed.communicators || counted) {
    if (!outside(Leaf::kCommNccl, Backing::kDriver,
                 counted ? Bytes{0} : *deployment_.assumed.communicators)) {
      return false;
    }
  } else {
    const std::vector<Buffer> buffers = communicator_buffers(deployment_);
    state_.memory.ledger().transfer(Account::free_of(Backing::kPinnedHost),
                                    Account::cell(Leaf::kCommNccl, Backing::kPinnedHost),
                                    bytes_on(buffers, Backing::kPinnedHost));
    for (const Backing backing : {Backing::kDriver, Backing::kSymmetric, Backing::kContext}) {
      if (!outside(Leaf::kCommNccl, backing, bytes_on(buffers, backing))) {
        return false;
      }
    }
    const Bytes tensors = bytes_on(buffers, Backing::kSegment);
    if (tensors > Bytes{0} && !allocate(Leaf::kCommNccl, tensors)) {
      return false;
    }
  }
  if (!allocate(Leaf::kModelBuffers, kFirstTensor)) {
    return false;
  }
  state_.free.before = counted ? *deployment_.card.free_at_start : measured_free();
  return end_phase("communicators");
}

bool StageStartup::load() {
  phase_ = "load";
  if (!run(expert_locations(deployment_))) {
    return false;
  }
  const Bytes before = measured_free();
  loaded_.clear();
  weights_ = load_sequence(deployment_, state_.stage);
  if (!run(weights_) ||
      !outside(Leaf::kSystemContext, Backing::kContext, deployment_.rules.load_modules)) {
    return false;
  }
  state_.after_load = measured_free();
  state_.weights = before - state_.after_load;
  return end_phase("load");
}

bool StageStartup::size_pools() {
  phase_ = "kv";
  if (!extend_rope_tables()) {
    return false;
  }
  state_.free.after = deployment_.assumed.available_after_load.value_or(measured_free());
  const auto budget = cache_budget(deployment_, state_.sizes, state_.free);
  if (const auto* refusal = std::get_if<CacheRefusal>(&budget)) {
    fail(refusal->kind, Leaf::kKvPool, refusal->short_by, refusal->message);
    return false;
  }
  const auto plan = cache_plan(deployment_, state_.sizes, std::get<CacheBudget>(budget));
  if (const auto* refusal = std::get_if<CacheRefusal>(&plan)) {
    fail(refusal->kind, Leaf::kKvPool, refusal->short_by, refusal->message);
    return false;
  }
  state_.plan = std::get<CachePlan>(plan);
  return true;
}

// A table is lengthened by computing the missing rows and joining both.
bool StageStartup::extend_rope_tables() {
  if (!deployment_.rules.rope_tables_extended) {
    return true;
  }
  const std::int64_t needed = rope_rows_needed(deployment_);
  for (const LoadSequence::RopeTable& table : weights_.tables) {
    if (needed <= table.rows) {
      continue;
    }
    const Bytes half{detail::checked_mul(needed - table.rows, table.columns) * 4 / 2};
    const auto angles = allocate(Leaf::kModelBuffers, half);
    const auto cosines = allocate(Leaf::kModelBuffers, half);
    const auto sines = allocate(Leaf::kModelBuffers, half);
    const auto rows = allocate(Leaf::kModelBuffers, half * 2);
    const auto joined =
        allocate(Leaf::kModelBuffers,
                 Bytes{detail::checked_mul(needed, table.columns)} * table.element_bytes);
    if (!angles || !cosines || !sines || !rows || !joined) {
      return false;
    }
    state_.memory.free(loaded_[table.tensor]);
    for (const auto& temporary : {angles, cosines, sines, rows}) {
      state_.memory.free(*temporary);
    }
    loaded_[table.tensor] = *joined;
  }
  return true;
}

bool StageStartup::kv() {
  phase_ = "kv";
  if (!allocate_all(pools(deployment_, state_.plan, state_.stage))) {
    return false;
  }
  state_.kv_pool = kv_pool_bytes(deployment_, state_.plan, state_.stage);
  state_.state_pool = state_pool_bytes(deployment_, state_.plan, state_.stage);
  state_.after_pool = measured_free();
  return end_phase("kv");
}

bool StageStartup::capture() {
  phase_ = "capture";
  if (!allocate_all(attention_workspaces(deployment_)) ||
      !allocate_all(input_registry(deployment_, state_.plan))) {
    return false;
  }
  const Bytes before = measured_free();
  if (deployment_.assumed.graphs) {
    if (!outside(Leaf::kGraphPool, Backing::kDriver, *deployment_.assumed.graphs)) {
      return false;
    }
    state_.decode_drop = before - measured_free();
    return end_phase("capture");
  }
  GraphCapture graphs(deployment_, state_.stage, state_.plan, state_.memory);
  bool fits = graphs.capture_prefills();
  const Bytes between = fits ? measured_free() : Bytes{0};
  fits = fits && graphs.capture_decodes();
  state_.graphs = graphs.captured();
  seen();
  if (!fits) {
    fail(OutcomeKind::kStartupOom, Leaf::kGraphPool, state_.memory.shortage(),
         fmt::format("Capture cuda graph failed: {}\nPossible solutions:\n1. set "
                     "--mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n2. set "
                     "--cuda-graph-max-bs to a smaller value (e.g., 16)\n",
                     state_.memory.message()));
    return false;
  }
  state_.prefill_drop = before - between;
  state_.decode_drop = between - measured_free();
  return end_phase("capture");
}

// The scheduler looks at what is free without emptying the cache.
bool StageStartup::warm_up() {
  phase_ = "warmup";
  state_.at_end = state_.memory.ledger().device_free();
  return end_phase("warmup");
}

bool StageStartup::end_phase(std::string_view name) {
  const Ledger& ledger = state_.memory.ledger();
  const MemoryViews views = ledger.views();
  state_.phases.push_back(
      {name, views, ledger.device_by_leaf(), std::max(phase_peak_, views.device_used)});
  phase_peak_ = Bytes{0};
  return true;
}

// ---- postings
// -------------------------------------------------------------------------------------

bool StageStartup::run(const LoadSequence& sequence) {
  loaded_.clear();
  for (const LoadStep& step : sequence.steps) {
    if (step.kind == LoadStep::Kind::kFree) {
      state_.memory.free(loaded_[step.tensor]);
      continue;
    }
    const auto made = allocate(step.leaf, step.bytes);
    if (!made) {
      return false;
    }
    loaded_.push_back(*made);
  }
  return true;
}

std::optional<CardMemory::Tensor> StageStartup::allocate(Leaf leaf, Bytes bytes) {
  const auto made = state_.memory.allocate(leaf, bytes, startup_tag(phase_, leaf));
  if (!made) {
    fail(OutcomeKind::kStartupOom, leaf, state_.memory.shortage(), state_.memory.message());
  } else {
    seen();
  }
  return made;
}

bool StageStartup::allocate_all(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [this](const opgraph::LiveTensor& tensor) {
    return allocate(tensor.leaf, tensor.bytes).has_value();
  });
}

bool StageStartup::outside(Leaf leaf, Backing backing, Bytes bytes) {
  if (!state_.memory.take_outside(leaf, backing, bytes)) {
    fail(OutcomeKind::kStartupOom, leaf, state_.memory.shortage(), state_.memory.message());
    return false;
  }
  seen();
  return true;
}

Bytes StageStartup::measured_free() {
  state_.memory.empty_cache();
  return state_.memory.ledger().device_free();
}

void StageStartup::seen() {
  const Ledger& ledger = state_.memory.ledger();
  state_.peaks.observe(ledger, SimTime{}, phase_);
  phase_peak_ = std::max(phase_peak_, ledger.views().device_used);
}

void StageStartup::fail(OutcomeKind kind, Leaf leaf, Bytes missing, std::string message) {
  outcome_.kind = kind;
  outcome_.phase = phase_;
  outcome_.rank = state_.first_rank;
  outcome_.leaf = leaf;
  outcome_.short_by = missing;
  outcome_.message = std::move(message);
}

}  // namespace oomcast::sglang
