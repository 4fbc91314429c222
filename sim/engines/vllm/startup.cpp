#include "sim/engines/vllm/startup.hpp"

#include <algorithm>
#include <cmath>

#include "models/load.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/ledger/torch_pool.hpp"

namespace oomcast::vllm {
namespace {

constexpr Bytes kMib{std::int64_t{1} << 20};

Leaf ledger_leaf(models::WeightLeaf leaf) {
  switch (leaf) {
    case models::WeightLeaf::kScales:
      return Leaf::kModelScales;
    case models::WeightLeaf::kBuffers:
      return Leaf::kModelBuffers;
    case models::WeightLeaf::kWeights:
      break;
  }
  return Leaf::kModelWeights;
}

// The communicators of one tensor-parallel group before any collective: per channel 6 MiB, per NVLS
// channel 2 MiB and about 6 MiB (facts: runtime 4.3), and vLLM's custom all-reduce with two buffers
// of 8 MiB and 8 MiB of addresses (5.1).
Bytes communicator_bytes(const Deployment& deployment) {
  if (deployment.tp == 1 && deployment.pp == 1) {
    return Bytes{0};
  }
  const bool nvlink = deployment.gpu.nvlink_bandwidth > 0;
  const std::int64_t channels = nvlink ? 32 : 4;
  const std::int64_t nvls = nvlink && deployment.gpu.compute_major >= 9 ? 16 : 0;
  const Bytes group = kMib * (6 * channels + 2 * nvls + 6);
  const bool custom = deployment.tp > 1 && !deployment.launch.on("disable-custom-all-reduce");
  return group + (custom ? kMib * 24 : Bytes{0});
}

// FlashInfer's planner and split buffers, made with the attention metadata builder (facts: vLLM
// 3.5): 394 MiB on cards where it is the default.
Bytes attention_workspace(const Deployment& deployment) {
  return deployment.attention_backend.rfind("FLASHINFER", 0) == 0 ? kMib * 394 : Bytes{0};
}

class StageStartup {
 public:
  StageStartup(const Deployment& deployment, int stage)
      : deployment_(deployment),
        state_(deployment.device_total()),
        torch_(state_.ledger, Backing::kSegment),
        graph_pool_(state_.ledger, Backing::kPrivatePool) {
    state_.stage = stage;
    state_.role = {stage == 0, stage == deployment.pp - 1};
    state_.kv = deployment.kv_layout(stage);
    layers_ = models::stage_layers(*deployment.model, deployment.shard(stage));
  }

  // Everything up to the KV budget. False when the startup died; see outcome().
  bool measure() {
    return context() && communicators() && first_snapshot() && load() && profile() && budget();
  }

  // The rest, with the number of blocks all ranks agreed on.
  bool serve(Blocks blocks) { return kv(blocks) && capture() && warm_up() && ready(); }

  // Whether `available` holds one request of max_model_len; fails as the engine's check does.
  bool check_kv(Bytes available);

  [[nodiscard]] const Outcome& outcome() const { return outcome_; }
  StageState& state() { return state_; }

 private:
  bool context() {
    const CardState& card = deployment_.card;
    // What others hold lies outside this process; free memory as shown before the start covers it.
    const Bytes others = card.free_at_start
                             ? std::max(Bytes{0}, deployment_.device_total() - *card.free_at_start)
                             : card.other_use;
    return outside(Leaf::kSystemContext, Backing::kDriver, others, "context") &&
           outside(Leaf::kSystemContext, Backing::kContext, deployment_.gpu.context_bytes,
                   "context") &&
           end_phase("context");
  }

  bool communicators() {
    return outside(Leaf::kCommNccl, Backing::kDriver, communicator_bytes(deployment_),
                   "communicators") &&
           end_phase("communicators");
  }

  bool first_snapshot() {
    if (deployment_.rules.cublas_before_snapshot &&
        !allocate(Leaf::kWorkspaceGemm, cublas_workspace(deployment_.gpu), "communicators")) {
      return false;
    }
    const double wanted = static_cast<double>(deployment_.device_total().count()) *
                          deployment_.gpu_memory_utilization;
    state_.requested = Bytes{static_cast<std::int64_t>(
        deployment_.rules.requested_is_ceiled ? std::ceil(wanted) : wanted)};
    free_at_snapshot_ = state_.ledger.device_free();
    if (free_at_snapshot_ >= state_.requested) {
      return true;
    }
    fail(OutcomeKind::kStartupOom, "context", Leaf::kSystemContext,
         state_.requested - free_at_snapshot_,
         fmt::format("Free memory on device cuda:{} ({:.2f}/{:.2f} GiB) on startup is less than "
                     "desired GPU memory utilization ({}, {:.2f} GiB). Decrease GPU memory "
                     "utilization or reduce GPU memory used by other processes.",
                     state_.stage * deployment_.tp, to_gib(free_at_snapshot_),
                     to_gib(deployment_.device_total()), deployment_.gpu_memory_utilization,
                     to_gib(state_.requested)));
    return false;
  }

  bool load() {
    if (!allocate_all(runner_buffers(deployment_, state_.role), "load") ||
        (!deployment_.runner_v2 && !allocate_all(block_tables(deployment_, state_.kv), "load"))) {
      return false;
    }
    const Bytes before = state_.ledger.views().torch_allocated;
    const models::RankWeights weights =
        models::weights_on_rank(*deployment_.model, deployment_.shard(state_.stage));
    std::array<Bytes, kLeafCount> sums{};
    for (const models::TensorBytes& tensor : weights.tensors) {
      sums[index_of(ledger_leaf(tensor.leaf))] += align_up(tensor.bytes, kTorchBlock);
    }
    for (const Leaf leaf : {Leaf::kModelWeights, Leaf::kModelScales, Leaf::kModelBuffers}) {
      if (!allocate(leaf, sums[index_of(leaf)], "load")) {
        return false;
      }
    }
    // Blocks may be larger than their tensors; the engine's log counts blocks.
    const Bytes blocks = models::loaded_bytes(weights, {deployment_.rules.load_max_split});
    const Bytes tensors = state_.ledger.views().torch_allocated - before;
    if (!allocate(Leaf::kSystemFragmentation, std::max(Bytes{0}, blocks - tensors), "load")) {
      return false;
    }
    state_.weights = state_.ledger.views().torch_allocated - before;
    return end_phase("load");
  }

  // Dummy batch of max_num_batched_tokens, then the sampler on max_num_seqs rows.
  bool profile() {
    const Tokens tokens = deployment_.max_num_batched_tokens;
    const std::int64_t rows = std::min(deployment_.max_num_seqs, tokens.count());
    allocated_at_profile_ = state_.ledger.views().torch_allocated;
    highest_allocated_ = allocated_at_profile_;
    const opgraph::StepShape shape{tokens.count(), rows, rows};
    if (!run(opgraph::Program(compile_graph(deployment_, state_.role)), shape, "profile") ||
        !run(opgraph::Program(
                 step_graph(deployment_, state_.stage, profile_kind(deployment_, state_.role))),
             shape, "profile")) {
      return false;
    }
    state_.graphs = graph_memory(deployment_, layers_.end - layers_.begin);
    torch_.empty_cache();
    return appear_outside_torch() && end_phase("profile");
  }

  // Runs a program op by op; what it keeps stays. Notes the highest moment as the profile's peak.
  bool run(const opgraph::Program& program, const opgraph::StepShape& shape, const char* phase) {
    const opgraph::OpGraph& graph = program.graph();
    std::uint32_t op = 0;
    for (const opgraph::Program::Step& step : program.steps()) {
      for (const opgraph::TensorId id : step.made) {
        const opgraph::TensorInfo& tensor = graph.info(id);
        if (!allocate(tensor.leaf, tensor.bytes.at(shape), phase)) {
          return false;
        }
      }
      const Bytes allocated = state_.ledger.views().torch_allocated;
      if (allocated > highest_allocated_) {
        highest_allocated_ = allocated;
        state_.profile_peak = program.live_set(opgraph::OpId{op}, shape);
      }
      for (const opgraph::TensorId id : step.freed) {
        const opgraph::TensorInfo& tensor = graph.info(id);
        torch_.free(tensor.leaf, tensor.bytes.at(shape));
      }
      ++op;
    }
    return true;
  }

  // Lazily loaded modules, first collectives and what a trial capture leaves behind.
  bool appear_outside_torch() {
    const StartupRules& rules = deployment_.rules;
    Bytes modules = rules.non_torch_single;
    Bytes collectives;
    if (deployment_.tp > 1) {
      collectives = rules.non_torch_tensor_parallel - modules;
    } else if (deployment_.pp > 1) {
      modules = rules.non_torch_pipeline;
    }
    if (deployment_.assumed.non_torch) {
      modules = *deployment_.assumed.non_torch;
      collectives = Bytes{0};
    }
    state_.non_torch = modules + collectives;
    return outside(Leaf::kSystemContext, Backing::kContext, modules, "profile") &&
           outside(Leaf::kCommNccl, Backing::kDriver, collectives, "profile");
  }

  bool budget() {
    const StartupRules& rules = deployment_.rules;
    const Bytes estimate = deployment_.graph_estimate_applied ? state_.graphs.estimate : Bytes{0};
    const Bytes kept = state_.ledger.views().torch_allocated;
    if (rules.budget == Budget::kConsumed) {
      state_.consumed = free_at_snapshot_ - state_.ledger.device_free();
      state_.activation_peak = highest_allocated_ - kept;
    } else {
      state_.activation_peak = highest_allocated_ - allocated_at_profile_;
    }
    if (deployment_.assumed.activation_peak) {
      state_.activation_peak = *deployment_.assumed.activation_peak;
    }
    const Bytes held =
        rules.budget == Budget::kConsumed ? state_.consumed : state_.weights + state_.non_torch;
    state_.available_kv = state_.requested - held - state_.activation_peak - estimate;
    if (rules.budget == Budget::kConsumed) {
      state_.activation_peak += estimate;  // what the log calls peak activation
    }
    if (deployment_.kv_cache_memory) {
      state_.available_kv = *deployment_.kv_cache_memory;
    }
    if (deployment_.assumed.available_kv) {
      state_.available_kv = *deployment_.assumed.available_kv;
    }
    return true;
  }

  bool kv(Blocks blocks) {
    // One tensor per member of a group; the allocator rounds each up to whole granules.
    const Bytes tensor = state_.kv.page * blocks.count();
    const Bytes slack = align_up(tensor, kDriverGranule) - tensor;
    return allocate(Leaf::kKvPool, tensor * state_.kv.group_size, "kv") &&
           allocate(Leaf::kSystemFragmentation, slack * state_.kv.group_size, "kv") &&
           (!deployment_.runner_v2 || allocate_all(block_tables(deployment_, state_.kv), "kv")) &&
           allocate(Leaf::kWorkspaceAttention, attention_workspace(deployment_), "kv") &&
           end_phase("kv");
  }

  bool capture() {
    if (deployment_.capture_sizes.empty()) {
      return end_phase("capture");
    }
    const Bytes before = state_.ledger.device_free();
    if (deployment_.assumed.graphs) {
      if (!outside(Leaf::kGraphPool, Backing::kDriver, *deployment_.assumed.graphs, "capture")) {
        return false;
      }
    } else {
      const GraphMemory& graphs = state_.graphs;
      const Bytes pool = graphs.piecewise_pool + graphs.full_pool;
      if (!allocate(Leaf::kWorkspaceGemm, graphs.stream_workspace, "capture") ||
          !allocate_from(graph_pool_, Leaf::kGraphPool, pool, "capture") ||
          !outside(Leaf::kGraphPool, Backing::kDriver, graphs.driver, "capture")) {
        return false;
      }
    }
    state_.capture_drop = before - state_.ledger.device_free();
    return end_phase("capture");
  }

  // The first runner samples once more with everything in place; what it frees stays cached.
  bool warm_up() {
    if (!deployment_.runner_v2 && state_.role.last) {
      const std::int64_t rows =
          std::min(deployment_.max_num_seqs, deployment_.max_num_batched_tokens.count());
      const StepKind kind{Execution::kFullGraph, Sampling::kProfile, false};
      if (!run(opgraph::Program(step_graph(deployment_, state_.stage, kind)), {rows, rows, rows},
               "warmup")) {
        outcome_.message = fmt::format(
            "CUDA out of memory occurred when warming up sampler with {} dummy requests. Please "
            "try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the "
            "engine.",
            rows);
        return false;
      }
    }
    return end_phase("warmup");
  }

  bool ready() { return end_phase("ready"); }

  // ---- postings ---------------------------------------------------------------------------------

  bool allocate(Leaf leaf, Bytes bytes, const char* phase) {
    return allocate_from(torch_, leaf, bytes, phase);
  }

  bool allocate_all(const std::vector<opgraph::LiveTensor>& tensors, const char* phase) {
    return std::all_of(tensors.begin(), tensors.end(), [&](const opgraph::LiveTensor& tensor) {
      return allocate(tensor.leaf, tensor.bytes, phase);
    });
  }

  bool allocate_from(TorchPool& pool, Leaf leaf, Bytes bytes, const char* phase) {
    if (bytes == Bytes{0}) {
      return true;
    }
    if (!pool.allocate(leaf, bytes)) {
      out_of_memory(leaf, bytes, pool.shortage(bytes), phase);
      return false;
    }
    seen(phase);
    return true;
  }

  // Memory that a library or the driver takes, in whole granules.
  bool outside(Leaf leaf, Backing backing, Bytes bytes, const char* phase) {
    const Bytes rounded = align_up(bytes, kDriverGranule);
    if (rounded > state_.ledger.device_free()) {
      out_of_memory(leaf, bytes, rounded - state_.ledger.device_free(), phase);
      return false;
    }
    state_.ledger.transfer(Account::free_of(backing), Account::cell(leaf, backing), rounded);
    seen(phase);
    return true;
  }

  void seen(const char* phase) {
    state_.peaks.observe(state_.ledger, SimTime{}, phase);
    phase_peak_ = std::max(phase_peak_, state_.ledger.views().device_used);
  }

  bool end_phase(std::string_view name) {
    const MemoryViews views = state_.ledger.views();
    state_.phases.push_back(
        {name, views, state_.ledger.device_by_leaf(), std::max(phase_peak_, views.device_used)});
    phase_peak_ = Bytes{0};
    return true;
  }

  void out_of_memory(Leaf leaf, Bytes wanted, Bytes missing, const char* phase) {
    const MemoryViews views = state_.ledger.views();
    fail(OutcomeKind::kStartupOom, phase, leaf, missing,
         fmt::format("CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of "
                     "{:.2f} GiB of which {} is free. Of the allocated memory {} is allocated by "
                     "PyTorch, and {} is reserved by PyTorch but unallocated.",
                     format_bytes(wanted), state_.stage * deployment_.tp,
                     to_gib(deployment_.device_total()), format_bytes(state_.ledger.device_free()),
                     format_bytes(views.torch_allocated),
                     format_bytes(views.torch_reserved - views.torch_allocated)));
  }

  void fail(OutcomeKind kind, const char* phase, Leaf leaf, Bytes missing, std::string message) {
    outcome_.kind = kind;
    outcome_.phase = phase;
    outcome_.rank = state_.stage * deployment_.tp;
    outcome_.leaf = leaf;
    outcome_.short_by = missing;
    outcome_.message = std::move(message);
  }

  const Deployment& deployment_;
  StageState state_;
  TorchPool torch_;
  TorchPool graph_pool_;
  models::LayerRange layers_;
  Outcome outcome_;
  Bytes phase_peak_;
  Bytes free_at_snapshot_;
  Bytes allocated_at_profile_;
  Bytes highest_allocated_;
};

bool StageStartup::check_kv(Bytes available) {
  if (available <= Bytes{0}) {
    fail(OutcomeKind::kKvTooSmall, "kv", Leaf::kKvPool, state_.kv.block_bytes() - available,
         "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
         "initializing the engine.");
    return false;
  }
  const Bytes usable =
      deployment_.rules.null_block_in_check ? available - state_.kv.block_bytes() : available;
  const Bytes needed = deployment_.kv_needed(state_.kv, deployment_.max_model_len);
  if (needed <= usable) {
    return true;
  }
  std::int64_t low = 0;
  std::int64_t high = deployment_.max_model_len.count();
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (deployment_.kv_needed(state_.kv, Tokens{middle}) <= usable) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const std::string longest =
      low > 0 ? fmt::format(
                    " Based on the available memory, the estimated maximum model length is "
                    "{}.",
                    low)
              : "";
  fail(OutcomeKind::kKvTooSmall, "kv", Leaf::kKvPool, needed - usable,
       fmt::format("To serve at least one request with the {} max seq len ({}), ({:.2f} GiB KV "
                   "cache is needed, which is larger than the available KV cache memory ({:.2f} "
                   "GiB).{} Try increasing `gpu_memory_utilization` or decreasing `max_model_len` "
                   "when initializing the engine.",
                   deployment_.rules.long_log_names_model ? "model's" : "models's",
                   deployment_.max_model_len.count(), to_gib(needed), to_gib(usable), longest));
  return false;
}

double concurrency(const Deployment& deployment, const KvLayout& layout, Blocks blocks) {
  Deployment by_groups = deployment;
  by_groups.rules.needed_from_groups = true;
  const Bytes one = by_groups.kv_needed(layout, deployment.max_model_len);
  return static_cast<double>(blocks.count()) /
         static_cast<double>(div_ceil(one, layout.block_bytes()));
}

EngineReport make_report(const Deployment& deployment, const std::vector<StageStartup*>& stages,
                         Blocks blocks, bool served) {
  EngineReport report;
  const StageState& first = stages.front()->state();
  report.total = deployment.device_total();
  report.weights = first.weights;
  report.available_kv = first.available_kv;
  report.activation_peak = first.activation_peak;
  for (StageStartup* stage : stages) {
    // Several workers log the same line; what is quoted of them is the lowest.
    report.available_kv = std::min(*report.available_kv, stage->state().available_kv);
    report.activation_peak = std::min(*report.activation_peak, stage->state().activation_peak);
  }
  if (deployment.rules.budget == Budget::kConsumed) {
    report.consumed = first.consumed;
  } else {
    report.non_torch = first.non_torch;
  }
  if (deployment.graph_estimate_applied) {
    report.cudagraph_estimate = first.graphs.estimate;
  }
  if (blocks > Blocks{0}) {
    report.kv_blocks = blocks.count();
    std::int64_t smallest_block = deployment.block_size.count();
    for (const KvGroupLayout& member : first.kv.groups) {
      smallest_block = std::min(smallest_block, member.group.block_size.count());
    }
    report.block_size = smallest_block;
    report.max_concurrency = concurrency(deployment, first.kv, blocks);
    const auto groups = static_cast<std::int64_t>(first.kv.groups.size());
    report.kv_tokens =
        deployment.rules.report_by_concurrency
            ? static_cast<std::int64_t>(*report.max_concurrency *
                                        static_cast<double>(deployment.max_model_len.count()))
            : blocks.count() / groups * smallest_block;
    report.max_running_requests = deployment.max_num_seqs;
  }
  if (served && !deployment.capture_sizes.empty()) {
    report.cudagraph = first.capture_drop;
  }
  return report;
}

}  // namespace

Bytes shown_at_ready(const StageState& stage, Leaf leaf) {
  switch (leaf) {
    case Leaf::kRuntimeActivations:
    case Leaf::kRuntimeIntermediates:
    case Leaf::kRuntimeLogits:
    case Leaf::kWorkspaceAttention:
    case Leaf::kWorkspaceGemm:
    case Leaf::kWorkspaceMoe:
      return stage.peaks.of(leaf).bytes;
    default:
      return stage.ledger.device_by_leaf()[index_of(leaf)];
  }
}

Startup simulate_startup(const Deployment& deployment) {
  std::vector<std::unique_ptr<StageStartup>> stages;
  std::vector<StageStartup*> measured;
  Startup out;
  Blocks blocks;
  const auto run = [&]() -> bool {
    for (int stage = 0; stage < deployment.pp; ++stage) {
      stages.push_back(std::make_unique<StageStartup>(deployment, stage));
      if (!stages.back()->measure()) {
        out.outcome = stages.back()->outcome();
        return false;
      }
      measured.push_back(stages.back().get());
    }
    // Every rank takes the smallest number of blocks that any of them can hold.
    for (StageStartup* stage : measured) {
      const StageState& state = stage->state();
      Bytes available = state.available_kv;
      const bool overridden = deployment.block_override.has_value();
      if (overridden && deployment.launch.at_least(0, 22)) {
        available = state.kv.block_bytes() * *deployment.block_override;
      }
      if (!stage->check_kv(available)) {
        out.outcome = stage->outcome();
        return false;
      }
      const Blocks own{overridden ? *deployment.block_override
                                  : available / state.kv.block_bytes()};
      blocks = stage == measured.front() ? own : std::min(blocks, own);
    }
    for (StageStartup* stage : measured) {
      if (!stage->serve(blocks)) {
        out.outcome = stage->outcome();
        return false;
      }
    }
    return true;
  };
  const bool served = run();
  if (measured.size() == stages.size() && !measured.empty()) {
    out.report = make_report(deployment, measured, blocks, served);
  } else {
    out.report.total = deployment.device_total();
  }
  out.blocks = blocks;
  for (const auto& stage : stages) {
    out.stages.push_back(std::move(stage->state()));
  }
  return out;
}

}  // namespace oomcast::vllm
