#include "sim/engines/vllm/stage_startup.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/attention_kinds.hpp"
#include "models/load.hpp"
#include "sim/comm/all_reduce.hpp"
#include "sim/comm/nccl.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/engines/startup_tag.hpp"
#include "sim/engines/vllm/encoder_profile.hpp"
#include "sim/engines/vllm/host_pool.hpp"
#include "sim/engines/vllm/kv_transfer.hpp"
#include "sim/engines/vllm/program_run.hpp"
#include "sim/engines/vllm/resident.hpp"
#include "sim/engines/vllm/sparse_mla.hpp"
#include "sim/kernels/attention.hpp"

namespace oomcast::vllm {
namespace {

bool switched_on(const Deployment& deployment, const char* variable) {
  return deployment.launch.variable(variable).value_or("1") != "0";
}

comm::NcclSettings nccl_settings(const Deployment& deployment) {
  comm::NcclSettings settings;
  settings.cumem = switched_on(deployment, "NCCL_CUMEM_ENABLE");
  settings.nvls = switched_on(deployment, "NCCL_NVLS_ENABLE");
  return settings;
}

// NCCL's communicators as they are before any collective, and vLLM's own all-reduces.
std::vector<Buffer> communicator_buffers(const Deployment& deployment) {
  std::vector<Buffer> buffers;
  for (const int ranks : {deployment.tp, deployment.pp}) {
    if (ranks > 1) {
      append(buffers, comm::nccl_memory(comm::group_on_node(deployment.gpu, ranks),
                                        nccl_settings(deployment), {})
                          .at_creation);
    }
  }
  if (deployment.tp > 1) {
    comm::GroupSetup setup;
    setup.engine.version = deployment.launch.version;
    setup.custom = !deployment.launch.on("disable-custom-all-reduce");
    setup.symmetric = comm::has_board_nvlink(deployment.gpu) &&
                      switched_on(deployment, "VLLM_ALLREDUCE_USE_SYMM_MEM");
    append(buffers,
           comm::tensor_group_buffers(comm::group_on_node(deployment.gpu, deployment.tp), setup));
  }
  return buffers;
}

// FlashInfer's float and planner buffers, made with the attention metadata builder.
Bytes attention_workspace(const Deployment& deployment) {
  if (deployment.attention_backend.rfind("FLASHINFER", 0) != 0) {
    return Bytes{0};
  }
  kernels::FlashInferEngine engine;
  engine.version = deployment.launch.version;
  return device_bytes(kernels::flashinfer(engine));
}

// The module of FlashInfer's latent attention makes its workspace when imported, and choosing a
// backend imports all candidates (attention/backends/mla/flashinfer_mla.py). The backend's own is
// counted with its buffers.
Bytes imported_workspace(const Deployment& deployment) {
  const bool asked = deployment.launch.text("attention-backend").has_value();
  const bool mla = models::has_attention(*deployment.model, models::AttentionKind::kMla) &&
                   !deployment.expands_latents();
  const bool own =
      deployment.attention_backend.rfind("FLASHINFER", 0) == 0 && !has_indexer(*deployment.model);
  return mla && !asked && !own ? deployment.rules.flashinfer_mla_workspace : Bytes{0};
}

// PyTorch's allocator does not split blocks from this size on while the engine loads or profiles.
class SplitLimit {
 public:
  SplitLimit(allocator::CachingAllocator& torch, Bytes limit)
      : torch_(torch), usual_(torch.settings()) {
    if (limit > Bytes{0}) {
      allocator::AllocatorSettings limited = usual_;
      limited.max_split_size = limit;
      torch_.set_settings(limited);
    }
  }
  ~SplitLimit() { torch_.set_settings(usual_); }
  SplitLimit(const SplitLimit&) = delete;
  SplitLimit& operator=(const SplitLimit&) = delete;
  SplitLimit(SplitLimit&&) = delete;
  SplitLimit& operator=(SplitLimit&&) = delete;

 private:
  allocator::CachingAllocator& torch_;
  allocator::AllocatorSettings usual_;
};

}  // namespace

StageStartup::StageStartup(const Deployment& deployment, int stage, StartupMemo* memo)
    : deployment_(deployment), memo_(memo), state_(deployment, stage), card_(state_) {}

bool StageStartup::measure() {
  const MeasuredStage* known =
      memo_ != nullptr ? memo_->measured(deployment_, state_.stage) : nullptr;
  if (known != nullptr && requested() <= known->free_at_snapshot) {
    return resume(*known) && budget();
  }
  return (memo_ != nullptr ? remember() : measure_anew()) && budget();
}

bool StageStartup::measure_anew() {
  const bool started = context() && (deployment_.rules.communicators_before_snapshot
                                         ? communicators() && first_snapshot()
                                         : first_snapshot() && communicators_within_budget());
  return started && load() && profile();
}

// A startup that ended at the first snapshot ended for its budget, which is not remembered.
bool StageStartup::remember() {
  const bool alive = measure_anew();
  if (free_at_snapshot_ >= state_.requested && free_at_snapshot_ > Bytes{0}) {
    memo_->keep(deployment_, {state_, programs_, free_at_snapshot_, allocated_at_profile_,
                              highest_allocated_, left_by_trial_, allocated_by_trial_, outcome()});
  }
  return alive;
}

bool StageStartup::resume(const MeasuredStage& measured) {
  state_ = measured.state;
  state_.requested = requested();
  programs_ = measured.programs;
  free_at_snapshot_ = measured.free_at_snapshot;
  allocated_at_profile_ = measured.allocated_at_profile;
  highest_allocated_ = measured.highest_allocated;
  left_by_trial_ = measured.left_by_trial;
  allocated_by_trial_ = measured.allocated_by_trial;
  card_.begin("profile");
  if (measured.outcome.fits()) {
    return true;
  }
  card_.take(measured.outcome);
  return false;
}

Bytes StageStartup::requested() const {
  const double wanted =
      static_cast<double>(deployment_.device_total().count()) * deployment_.gpu_memory_utilization;
  return Bytes{static_cast<std::int64_t>(deployment_.rules.requested_is_ceiled ? std::ceil(wanted)
                                                                               : wanted)};
}

bool StageStartup::serve(Blocks blocks) { return kv(blocks) && capture() && warm_up() && ready(); }

std::int64_t StageStartup::sampled_rows() const {
  return std::min(deployment_.max_num_seqs, deployment_.max_num_batched_tokens.count());
}

// ---- phases
// ---------------------------------------------------------------------------------------

bool StageStartup::context() {
  card_.begin("context");
  return card_.outside(Leaf::kSystemContext, Backing::kDriver, deployment_.used_by_others()) &&
         card_.outside(Leaf::kSystemContext, Backing::kContext, deployment_.gpu.context_bytes) &&
         card_.end();
}

bool StageStartup::communicators() {
  card_.begin("communicators");
  if (deployment_.assumed.communicators) {
    return card_.outside(Leaf::kCommNccl, Backing::kDriver, *deployment_.assumed.communicators) &&
           card_.end();
  }
  return card_.outside_all(Leaf::kCommNccl, communicator_buffers(deployment_)) && card_.end();
}

bool StageStartup::communicators_within_budget() {
  const Bytes before = card_.device_free();
  const bool made = communicators();
  state_.non_torch += before - card_.device_free();
  return made;
}

bool StageStartup::first_snapshot() {
  if (deployment_.rules.cublas_before_snapshot &&
      !card_.allocate(Leaf::kWorkspaceGemm, deployment_.cublas_workspace)) {
    return false;
  }
  state_.requested = requested();
  free_at_snapshot_ = card_.device_free();
  if (free_at_snapshot_ >= state_.requested) {
    return true;
  }
  card_.begin("context");  // where the engine looks at it
  card_.fail(
      OutcomeKind::kStartupOom, Leaf::kSystemContext, state_.requested - free_at_snapshot_,
      fmt::format("Free memory on device cuda:{} ({:.2f}/{:.2f} GiB) on startup is less than "
                  "desired GPU memory utilization ({}, {:.2f} GiB). Decrease GPU memory "
                  "utilization or reduce GPU memory used by other processes.",
                  state_.stage * deployment_.tp, to_gib(free_at_snapshot_),
                  to_gib(deployment_.device_total()), deployment_.gpu_memory_utilization,
                  to_gib(state_.requested)));
  return false;
}

bool StageStartup::load() {
  card_.begin("load");
  // The first runner's batch of requests, with its tables, comes before its other buffers.
  if ((!deployment_.runner_v2 && !make_block_tables(first_layout(), state_.first_tables)) ||
      !card_.allocate_all(runner_buffers(deployment_, state_.role))) {
    return false;
  }
  const Bytes before = card_.allocated();
  const SplitLimit limit(state_.memory.torch(), deployment_.rules.load_max_split);
  bool loaded = load_weights();
  state_.memory.empty_cache();
  const Bytes residual = deployment_.assumed.residuals.load;
  loaded =
      loaded && card_.outside(Leaf::kModelBuffers, Backing::kDriver, std::max(Bytes{0}, residual));
  // The engine's log counts blocks.
  state_.weights = card_.allocated() - before + residual;
  loaded = loaded && card_.allocate_all(sampling_states(deployment_, state_.role));
  // Made once the model is there (prepare_communication_buffer_for_model).
  return loaded && card_.outside_all(Leaf::kCommExpert, deployment_.exchange.buffers) &&
         card_.end();
}

bool StageStartup::load_weights() {
  const models::ShardPlan plan = deployment_.shard(state_.stage);
  const models::RankWeights weights = models::weights_on_rank(*deployment_.model, plan);
  if (!card_.allocate(Leaf::kWorkspaceAttention, imported_workspace(deployment_))) {
    return false;
  }
  if (const Bytes buffers = sparse_mla_buffers(deployment_); buffers > Bytes{0}) {
    sparse_buffers_ = card_.make(Leaf::kWorkspaceAttention, buffers);
    if (!sparse_buffers_) {
      return false;
    }
  }
  if (!make_tensors(weights) ||
      !card_.allocate(Leaf::kModelBuffers, tapped_embeddings(deployment_))) {
    return false;
  }
  if (weights.on_host > Bytes{} &&
      !card_.outside_all(Leaf::kModelWeights,
                         {{"offloaded weights", "--cpu-offload-gb", weights.on_host,
                           Lifetime::kPersistent, Backing::kPinnedHost}})) {
    return false;
  }
  const auto& speculation = deployment_.speculation;
  if (speculation && speculation->draft && state_.role.last &&
      !make_tensors(draft_weights(*speculation, plan))) {
    return false;
  }
  card_.seen();
  return true;
}

bool StageStartup::make_tensors(const models::RankWeights& weights) {
  std::vector<CardMemory::Tensor> tensors;
  constexpr Version kReleasesBeforeConversion{0, 32, 0};  // model_loader/base_loader.py
  for (const models::LoadCall& call : models::load_sequence(weights)) {
    if (call.begins_conversion && deployment_.launch.version >= kReleasesBeforeConversion) {
      state_.memory.empty_cache();
    }
    if (call.kind == models::LoadCall::Kind::kFree) {
      state_.memory.free(tensors[call.tensor]);
      continue;
    }
    const Leaf leaf = ledger_leaf(call.leaf);
    const auto made = state_.memory.allocate(leaf, call.bytes, startup_tag("load", leaf));
    if (!made) {
      card_.fail(OutcomeKind::kStartupOom, leaf, state_.memory.shortage(), state_.memory.message());
      return false;
    }
    tensors.push_back(*made);
    if (call.converted_at_first_use > Bytes{0}) {
      unconverted_.emplace_back(*made, call.converted_at_first_use);
    }
  }
  return true;
}

// Tables in another dtype than the model's are replaced when it runs first; compiled code keeps
// them (rotary_embedding/base.py).
bool StageStartup::convert_tables() {
  if (!deployment_.enforce_eager) {
    return true;
  }
  for (const auto& [table, bytes] : unconverted_) {
    if (!card_.allocate(table.leaf, bytes)) {
      return false;
    }
    state_.memory.free(table);
  }
  unconverted_.clear();
  return true;
}

// Dummy batch of max_num_batched_tokens, then the sampler on max_num_seqs rows.
bool StageStartup::profile() {
  card_.begin("profile");
  const Tokens tokens = deployment_.max_num_batched_tokens;
  allocated_at_profile_ = card_.allocated();
  highest_allocated_ = allocated_at_profile_;
  profiling_ = true;
  const auto images = encoder_batch(deployment_);
  if (images && !run(opgraph::Program(encoder_graph(deployment_)), {images->patches, 0, 0})) {
    return false;
  }
  std::vector<CardMemory::Tensor> kept;
  if (images) {
    for (const Bytes bytes : {images->pixels, images->embeddings}) {
      const auto tensor = card_.make(Leaf::kRuntimeActivations, bytes);
      if (!tensor) {
        return false;
      }
      kept.push_back(*tensor);
    }
  }
  if (!run_profile({tokens.count(), sampled_rows(), sampled_rows()})) {
    return false;
  }
  for (const CardMemory::Tensor& tensor : kept) {
    state_.memory.free(tensor);
  }
  profiling_ = false;
  if (deployment_.runner_v2 || deployment_.rules.budget == Budget::kConsumed) {
    state_.memory.empty_cache();
  }
  const Bytes free_before = card_.device_free();
  const Bytes allocated_before = card_.allocated();
  const bool tried = trial_capture();
  state_.memory.empty_cache();
  left_by_trial_ = free_before - card_.device_free();
  allocated_by_trial_ = card_.allocated() - allocated_before;
  return tried && appear_outside_torch() && card_.end();
}

// Views of it keep it beside what replaces it until 0.30.
void StageStartup::release_outgrown() {
  if (sparse_buffers_ && deployment_.rules.sparse_buffers == SparseBuffers::kPadded &&
      shared_workspace(deployment_) > sparse_mla_buffers(deployment_)) {
    state_.memory.free(*sparse_buffers_);
    sparse_buffers_.reset();
  }
}

bool StageStartup::run_profile(const opgraph::StepShape& shape) {
  release_outgrown();
  const SplitLimit limit(state_.memory.torch(), deployment_.rules.profile_max_split);
  return convert_tables() &&
         run(opgraph::Program(compile_graph(deployment_, state_.role)), shape) &&
         run(opgraph::Program(
                 step_graph(deployment_, state_.stage, profile_kind(deployment_, state_.role))),
             shape);
}

// The trial and the capture run the same programs.
GraphCapture& StageStartup::graphs() {
  if (!programs_) {
    programs_ = std::make_shared<const CapturePrograms>(deployment_, state_.stage);
  }
  if (!graphs_) {
    graphs_.emplace(deployment_, *programs_, state_.memory,
                    memo_ != nullptr ? memo_->effects(deployment_, *programs_) : nullptr);
  }
  return *graphs_;
}

bool StageStartup::trial_capture() {
  if (!deployment_.rules.graph_estimate_possible || deployment_.capture_sizes.empty()) {
    return true;
  }
  if (deployment_.runner_v2 ? !make_block_tables(state_.kv, state_.first_tables)
                            : !replace_block_tables()) {
    return false;
  }
  GraphCapture& trial = graphs();
  if (!trial.run(true)) {
    card_.fail(OutcomeKind::kStartupOom, Leaf::kGraphPool, state_.memory.shortage(),
               state_.memory.message());
    return false;
  }
  state_.graph_estimate = trial.estimate();
  trial.release();
  return true;
}

// The first runner's tables before the model is there: one group, of the block size asked for.
KvLayout StageStartup::first_layout() const {
  constexpr Tokens kUsual{16};
  KvLayout layout;
  KvGroupLayout group;
  group.group.block_size =
      Tokens{deployment_.launch.integer("block-size").value_or(kUsual.count())};
  layout.groups.push_back(group);
  return layout;
}

bool StageStartup::make_block_tables(const KvLayout& layout,
                                     std::vector<CardMemory::Tensor>& tables) {
  for (const opgraph::LiveTensor& table : block_tables(deployment_, layout)) {
    const auto made = card_.make(table.leaf, table.bytes);
    if (!made) {
      return false;
    }
    tables.push_back(*made);
  }
  return true;
}

// Lazily loaded modules, first collectives and what a trial capture leaves behind.
bool StageStartup::appear_outside_torch() {
  const StartupRules& rules = deployment_.rules;
  const bool small = deployment_.gpu.compute_major < 9;
  Bytes modules =
      (small ? rules.non_torch_before_hopper : rules.non_torch_single) +
      (rules.graph_estimate_possible && !deployment_.capture_sizes.empty() ? rules.trial_capture
                                                                           : Bytes{0});
  Bytes collectives;
  if (deployment_.tp > 1 && !comm::has_board_nvlink(deployment_.gpu)) {
    // The measured value is that of NVLink's many channels.
    const comm::NcclMemory nccl = comm::nccl_memory(
        comm::group_on_node(deployment_.gpu, deployment_.tp), nccl_settings(deployment_), {});
    collectives = device_bytes(nccl.at_first_collective);
  } else if (deployment_.tp > 1) {
    collectives = (deployment_.gpu.compute_major == 10 ? rules.non_torch_tensor_parallel_blackwell
                                                       : rules.non_torch_tensor_parallel) -
                  modules;
  } else if (deployment_.pp > 1) {
    modules = rules.non_torch_pipeline;
  }
  const Residuals& residuals = deployment_.assumed.residuals;
  modules = std::max(Bytes{0}, modules + residuals.non_torch);
  if (deployment_.tp > 1) {
    collectives = std::max(Bytes{0}, collectives + residuals.collectives);
  }
  if (deployment_.assumed.non_torch) {
    modules = *deployment_.assumed.non_torch;
    collectives = Bytes{0};
  }
  state_.non_torch += modules + collectives + device_bytes(deployment_.exchange.buffers);
  return card_.outside(Leaf::kSystemContext, Backing::kContext, modules) &&
         card_.outside(Leaf::kCommNccl, Backing::kDriver, collectives);
}

bool StageStartup::budget() {
  const StartupRules& rules = deployment_.rules;
  state_.profile_increase = highest_allocated_ - allocated_at_profile_;
  const Bytes estimate = deployment_.graph_estimate_applied ? state_.graph_estimate : Bytes{0};
  if (rules.budget == Budget::kConsumed) {
    // Looked at before graphs are tried (gpu_worker.py).
    state_.consumed = free_at_snapshot_ - card_.device_free() - left_by_trial_ +
                      std::min(Bytes{0}, deployment_.assumed.residuals.load);
    state_.activation_peak = highest_allocated_ - (card_.allocated() - allocated_by_trial_);
  } else {
    state_.activation_peak = state_.profile_increase;
  }
  state_.activation_peak =
      std::max(Bytes{0}, state_.activation_peak + deployment_.assumed.residuals.activation);
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

// Where the tables made before do not fit the groups, others take their place.
bool StageStartup::replace_block_tables() {
  const auto& groups = state_.kv.groups;
  const bool fit = groups.size() == 1 && groups.front().group.block_size ==
                                             first_layout().groups.front().group.block_size;
  if (!deployment_.runner_v2 && (fit || state_.first_tables.empty())) {
    return true;
  }
  std::vector<CardMemory::Tensor> tables;
  if (!make_block_tables(state_.kv, tables)) {
    return false;
  }
  for (const CardMemory::Tensor& table : state_.first_tables) {
    state_.memory.free(table);
  }
  state_.first_tables.clear();
  return true;
}

bool StageStartup::kv(Blocks blocks) {
  card_.begin("kv");
  if (!deployment_.runner_v2 && !replace_block_tables()) {
    return false;
  }
  // One tensor per member of a group; the second runner makes one for all.
  const Bytes tensor = state_.kv.page * blocks.count();
  const std::int64_t tensors = deployment_.runner_v2 ? 1 : state_.kv.group_size;
  const Bytes each = deployment_.runner_v2 ? tensor * state_.kv.group_size : tensor;
  for (std::int64_t i = 0; i < tensors; ++i) {
    if (!card_.allocate(Leaf::kKvPool, each)) {
      return false;
    }
  }
  // NIXL registers the caches where they are; with a host buffer there is one for each of them.
  const auto transfer = kv_transfer(deployment_.launch);
  if (transfer && transfer->connector.host_buffer &&
      !card_.outside_all(Leaf::kKvTransfer, {{"host buffer of the KV cache", "blocks x block",
                                              tensor * state_.kv.group_size, Lifetime::kPersistent,
                                              Backing::kPinnedHost}})) {
    return false;
  }
  const auto host = host_pool(deployment_);
  if (host &&
      !card_.outside_all(Leaf::kKvTransfer,
                         {{"host tier of the KV cache", "chunks x chunk / ranks",
                           host->rank_bytes(), Lifetime::kPersistent, Backing::kPinnedHost}})) {
    return false;
  }
  return (!deployment_.runner_v2 || replace_block_tables()) &&
         card_.allocate(Leaf::kWorkspaceAttention, attention_workspace(deployment_)) && card_.end();
}

bool StageStartup::capture() {
  card_.begin("capture");
  if (deployment_.capture_sizes.empty()) {
    return card_.end();
  }
  const Bytes before = card_.device_free();
  if (deployment_.assumed.graphs) {
    if (!card_.outside(Leaf::kGraphPool, Backing::kDriver, *deployment_.assumed.graphs)) {
      return false;
    }
  } else {
    const bool fits = graphs().run(false);
    state_.graphs = graphs().captured();
    if (!fits) {
      card_.fail(OutcomeKind::kStartupOom, Leaf::kGraphPool, state_.memory.shortage(),
                 state_.memory.message());
      return false;
    }
    card_.seen();
  }
  state_.capture_drop = before - card_.device_free();
  return card_.end();
}

// The first runner samples once more with everything in place; what it frees stays cached.
bool StageStartup::warm_up() {
  card_.begin("warmup");
  if (!deployment_.runner_v2 && state_.role.last) {
    const std::int64_t rows = sampled_rows();
    const StepKind kind{.execution = Execution::kFullGraph, .sampling = Sampling::kProfile};
    if (!run(opgraph::Program(step_graph(deployment_, state_.stage, kind)), {rows, rows, rows})) {
      card_.say(fmt::format(
          "CUDA out of memory occurred when warming up sampler with {} dummy requests. Please try "
          "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
          rows));
      return false;
    }
  }
  return card_.end();
}

bool StageStartup::ready() {
  card_.begin("ready");
  return card_.end();
}

// Runs a program op by op; what it keeps stays. Notes the highest moment as the profile's peak.
bool StageStartup::run(const opgraph::Program& program, const opgraph::StepShape& shape) {
  std::optional<opgraph::OpId> highest;
  const auto failed = run_program(
      program, shape, card_.phase(), state_.memory, [](opgraph::OpId /*op*/) {},
      [&](opgraph::OpId op) {
        if (profiling_ && card_.allocated() > highest_allocated_) {
          highest_allocated_ = card_.allocated();
          highest = op;
        }
        card_.seen();
      });
  if (failed) {
    card_.fail(OutcomeKind::kStartupOom, *failed, state_.memory.shortage(),
               state_.memory.message());
    return false;
  }
  if (highest) {
    state_.profile_peak = program.live_set(*highest, shape);
  }
  return true;
}

// Full graphs of a model with states are captured for max_num_seqs sequences with a state each.
bool StageStartup::check_state_blocks(Blocks blocks) {
  card_.begin("kv");
  const bool has_states = std::any_of(
      state_.kv.groups.begin(), state_.kv.groups.end(),
      [](const KvGroupLayout& member) { return member.group.type == KvGroup::Type::kMamba; });
  if (!has_states || !deployment_.rules.checks_state_blocks ||
      !has_full(deployment_.cudagraph_mode) || deployment_.max_num_seqs <= blocks.count()) {
    return true;
  }
  state_.state_blocks = blocks;
  card_.fail(
      OutcomeKind::kConfigRejected, Leaf::kKvPool,
      state_.kv.block_bytes() * (deployment_.max_num_seqs - blocks.count()),
      fmt::format("max_num_seqs ({}) exceeds available Mamba cache blocks ({}). Each decode "
                  "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. "
                  "Please lower max_num_seqs to at most {} or increase gpu_memory_utilization.",
                  deployment_.max_num_seqs, blocks.count(), blocks.count()));
  return false;
}

namespace {

// What the engine holds a stage's memory for KV against.
class KvCheck {
 public:
  KvCheck(const Deployment& deployment, const StageState& state, Bytes available)
      : deployment_(deployment),
        layouts_{state.kv},
        usable_(deployment.rules.null_block_in_check ? available - state.kv.block_bytes()
                                                     : available) {
    // Releases that compare a stage's memory with what the whole model needs see all its layers.
    for (int other = 0; deployment.rules.needed_of_all_stages && other < deployment.pp; ++other) {
      if (other != state.stage) {
        layouts_.push_back(deployment.kv_layout(other));
      }
    }
  }

  [[nodiscard]] Bytes usable() const { return usable_; }
  [[nodiscard]] Bytes needed(Tokens length) const {
    Bytes sum;
    for (const KvLayout& layout : layouts_) {
      sum += deployment_.kv_needed(layout, length);
    }
    return sum;
  }
  // 0: not even one token.
  [[nodiscard]] Tokens longest() const {
    std::int64_t low = 0;
    std::int64_t high = deployment_.max_model_len.count();
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      if (needed(Tokens{middle}) <= usable_) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return Tokens{low};
  }

 private:
  const Deployment& deployment_;
  std::vector<KvLayout> layouts_;
  Bytes usable_;
};

}  // namespace

Tokens StageStartup::longest_that_fits(Bytes available) const {
  return KvCheck(deployment_, state_, available).longest();
}

void StageStartup::cannot_fit_any() {
  card_.fail(OutcomeKind::kKvTooSmall, Leaf::kKvPool, deployment_.kv_needed(state_.kv, Tokens{1}),
             "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a "
             "single token. Try increasing `gpu_memory_utilization`.");
}

bool StageStartup::check_kv(Bytes available) {
  card_.begin("kv");
  if (available <= Bytes{0}) {
    card_.fail(
        OutcomeKind::kKvTooSmall, Leaf::kKvPool, state_.kv.block_bytes() - available,
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.");
    return false;
  }
  const KvCheck check(deployment_, state_, available);
  const Bytes needed = check.needed(deployment_.max_model_len);
  if (deployment_.fits_model_len || needed <= check.usable()) {
    return true;
  }
  state_.kv_needed = needed;
  const Tokens fits = check.longest();
  if (fits > Tokens{0}) {
    state_.longest_that_fits = fits;
  }
  const std::string longest =
      fits > Tokens{0} ? fmt::format(
                             " Based on the available memory, the estimated maximum model length "
                             "is {}.",
                             fits.count())
                       : "";
  card_.fail(
      OutcomeKind::kKvTooSmall, Leaf::kKvPool, needed - check.usable(),
      fmt::format("To serve at least one request with the {} max seq len ({}), ({:.2f} GiB KV "
                  "cache is needed, which is larger than the available KV cache memory ({:.2f} "
                  "GiB).{} Try increasing `gpu_memory_utilization` or decreasing `max_model_len` "
                  "when initializing the engine.",
                  deployment_.rules.long_log_names_model ? "model's" : "models's",
                  deployment_.max_model_len.count(), to_gib(needed), to_gib(check.usable()),
                  longest));
  return false;
}

}  // namespace oomcast::vllm
