#include "sim/engines/trtllm/startup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "models/attention_kinds.hpp"
#include "models/load.hpp"
#include "sim/comm/all_reduce.hpp"
#include "sim/comm/nccl.hpp"
#include "sim/core/units_text.hpp"
#include "sim/engines/startup_card.hpp"
#include "sim/engines/trtllm/forward.hpp"

namespace oomcast::trtllm {
namespace {

std::vector<Buffer> communicator_buffers(const Deployment& deployment) {
  std::vector<Buffer> buffers;
  for (const int ranks : {deployment.tp, deployment.pp}) {
    if (ranks > 1) {
      const comm::RankGroup group = comm::group_on_node(deployment.gpu, ranks);
      const comm::NcclMemory nccl = comm::nccl_memory(group, {}, {});
      append(buffers, nccl.at_creation);
      append(buffers, nccl.at_first_collective);
      if (ranks == deployment.tp) {
        append(buffers, comm::trtllm_all_reduce(group, deployment.launch.version, false));
      }
    }
  }
  return buffers;
}

// Layers of one window and head count share a pool.
struct Pool {
  std::int64_t window = 0;  // 0: the whole sequence
  Bytes token;              // of all its layers
};

class StageStartup {
 public:
  StageStartup(const Deployment& deployment, int stage)
      : deployment_(deployment),
        state_(std::make_unique<StageState>(deployment, stage)),
        card_(*state_) {
    std::map<std::int64_t, Bytes> by_window;
    for (const models::KvLayerSpec& layer : deployment.kv_layers(stage)) {
      const Bytes token = deployment.kv_token_bytes(layer);
      if (token > Bytes{0}) {
        by_window[models::has_window(layer.kind) ? layer.window.count() : 0] += token;
      }
    }
    for (const auto& [window, token] : by_window) {
      pools_.push_back({window, token});
    }
    state_->kv_groups = static_cast<int>(pools_.size());
  }

  bool measure() {
    return context() && communicators() && load() && (profiled() ? dry_run() : free_share());
  }
  bool serve(std::int64_t tokens) { return kv(tokens) && capture() && rest(); }

  [[nodiscard]] const Outcome& outcome() const { return card_.outcome(); }
  StageState& state() { return *state_; }

  // Tokens of `bytes`, in whole blocks.
  [[nodiscard]] std::int64_t tokens_of(Bytes bytes) const {
    const Bytes token = token_bytes();
    if (token == Bytes{0} || bytes <= Bytes{0}) {
      return 0;
    }
    const std::int64_t block = deployment_.tokens_per_block.count();
    std::int64_t tokens = bytes / token;
    if (deployment_.max_kv_tokens) {
      tokens = std::min(tokens, deployment_.max_kv_tokens->count());
    }
    return (deployment_.rules.blocks_are_ceiled ? div_ceil(tokens, block) : tokens / block) * block;
  }

  // The dry run's peak above the weights.
  [[nodiscard]] Bytes dynamic() const {
    return deployment_.assumed.activation_peak.value_or(
        std::max(Bytes{0}, state_->dynamic + residuals().activation));
  }

 private:
  [[nodiscard]] bool profiled() const {
    return deployment_.rules.profiles &&
           deployment_.launch.text("backend").value_or("pytorch") == "pytorch" &&
           !deployment_.assumed.free_for_kv;
  }

  // All layers' keys and values of one token, where every pool holds the whole sequence.
  [[nodiscard]] Bytes token_bytes() const {
    Bytes sum;
    for (const Pool& pool : pools_) {
      sum += pool.token;
    }
    return sum;
  }

  bool context() {
    card_.begin("context");
    return card_.outside(Leaf::kSystemContext, Backing::kDriver, deployment_.used_by_others()) &&
           card_.outside(Leaf::kSystemContext, Backing::kContext, deployment_.gpu.context_bytes) &&
           card_.end();
  }

  bool communicators() {
    card_.begin("communicators");
    return card_.outside_all(Leaf::kCommNccl, communicator_buffers(deployment_)) &&
           (deployment_.tp == 1 ||
            card_.correct(Leaf::kCommNccl, Backing::kDriver, residuals().collectives)) &&
           card_.outside_all(Leaf::kCommExpert, deployment_.exchange.buffers) && card_.end();
  }

  bool load() {
    card_.begin("load");
    std::vector<CardMemory::Tensor> tensors;
    for (const models::LoadCall& call : models::load_sequence(
             models::weights_on_rank(*deployment_.model, deployment_.shard(state_->stage)))) {
      if (call.kind == models::LoadCall::Kind::kFree) {
        state_->memory.free(tensors[call.tensor]);
        continue;
      }
      const auto made = card_.make(ledger_leaf(call.leaf), call.bytes);
      if (!made) {
        return refuse("Model");
      }
      tensors.push_back(*made);
    }
    state_->memory.empty_cache();
    state_->weights = std::max(Bytes{0}, card_.allocated() + residuals().load);
    return card_.correct(Leaf::kSystemContext, Backing::kContext, residuals().load) && card_.end();
  }

  // The engine's text names the stage that could not be made.
  bool refuse(const char* component) {
    const Outcome failed = card_.outcome();
    card_.fail(
        failed.kind, *failed.leaf, failed.short_by,
        fmt::format("Executor creation failed due to insufficient GPU memory. The following "
                    "component could not be created: {}. Total GPU memory (GiB): {:.2f}. "
                    "Free GPU memory before component creation attempt (GiB): {:.2f}",
                    component, to_gib(deployment_.device_total()), to_gib(card_.device_free())));
    return false;
  }

  // Blocks of the temporary cache (facts: TensorRT-LLM 3.1).
  [[nodiscard]] std::int64_t trial_blocks() const {
    const std::int64_t block = deployment_.tokens_per_block.count();
    const std::int64_t longest =
        std::min(deployment_.max_num_tokens,
                 std::max<std::int64_t>(1, deployment_.max_model_len.count() - 1));
    const std::int64_t whole = deployment_.max_num_tokens / longest;
    const std::int64_t last = deployment_.max_num_tokens % longest;
    std::int64_t blocks = whole * div_ceil(longest + 1, block);
    blocks += last > 0 ? div_ceil(last + 1, block) : 0;
    if (!deployment_.graph_sizes.empty()) {
      blocks = std::max(blocks, div_ceil(deployment_.max_model_len.count() + 1, block) +
                                    deployment_.graph_sizes.front() - 1);
    }
    return std::max(blocks, deployment_.max_batch_size) * deployment_.beam_width;
  }

  bool dry_run() {
    card_.begin("profile");
    const Bytes share{static_cast<std::int64_t>(
        static_cast<double>(std::max(Bytes{0}, card_.device_free()).count()) *
        deployment_.free_fraction)};
    std::int64_t tokens = detail::checked_mul(trial_blocks(), deployment_.tokens_per_block.count());
    if (token_bytes() > Bytes{0}) {
      tokens = std::min(tokens, tokens_of(share));
    }
    const Bytes trial = token_bytes() * tokens;
    if (!card_.outside(Leaf::kKvPool, Backing::kDriver, trial) ||
        !card_.outside(Leaf::kSystemContext, Backing::kContext, outside_torch_bytes())) {
      return refuse("Initial KV Cache (temporary for KV cache size estimation)");
    }
    if (!card_.allocate(Leaf::kWorkspaceGemm, deployment_.cublas_workspace) || !forward() ||
        !graphs()) {
      return refuse("Additional executor resources (temporary for KV cache size estimation)");
    }
    state_->memory.empty_cache();
    const Bytes used = deployment_.device_total() - card_.device_free();
    const Bytes inside = card_.allocated() + residuals().load;
    const Bytes extra = std::max(Bytes{0}, used - inside);
    const Bytes peak = state_->weights + dynamic() + extra;
    state_->outside_torch = extra - trial;
    state_->available = share_of(deployment_.device_total() - peak + trial);
    release_graphs();
    state_->memory.return_outside(Leaf::kKvPool, Backing::kDriver, trial);
    return card_.end() && limit();
  }

  [[nodiscard]] Bytes outside_torch_bytes() const {
    return deployment_.assumed.non_torch.value_or(
        std::max(Bytes{0}, deployment_.rules.modules + residuals().non_torch));
  }
  [[nodiscard]] const Residuals& residuals() const { return deployment_.assumed.residuals; }
  [[nodiscard]] Bytes share_of(Bytes free) const {
    return Bytes{
        static_cast<std::int64_t>(static_cast<double>(free.count()) * deployment_.free_fraction)};
  }

  // The TensorRT path: a share of what is free once the engine is there.
  bool free_share() {
    card_.begin("profile");
    if (!card_.outside(Leaf::kSystemContext, Backing::kContext, outside_torch_bytes())) {
      return refuse("Executor");
    }
    state_->available = share_of(deployment_.assumed.free_for_kv.value_or(card_.device_free()));
    return card_.end() && limit();
  }

  bool limit() {
    if (deployment_.max_kv_bytes) {
      state_->available = std::min(state_->available, *deployment_.max_kv_bytes);
    }
    if (deployment_.assumed.available_kv) {
      state_->available = *deployment_.assumed.available_kv;
    }
    const Bytes states = deployment_.state_bytes(state_->stage) * deployment_.max_batch_size;
    state_->tokens = tokens_of(state_->available - states);
    if (token_bytes() > Bytes{0} && state_->tokens == 0) {
      card_.begin("kv");
      card_.fail(OutcomeKind::kKvTooSmall, Leaf::kKvPool,
                 states + token_bytes() * deployment_.tokens_per_block.count() - state_->available,
                 "Impossible to fit in any sequence in kvCache");
      return false;
    }
    return true;
  }

  bool forward() {
    const bool last = state_->stage == deployment_.pp - 1;
    const std::int64_t rows =
        last ? div_ceil(deployment_.max_num_tokens,
                        std::min(deployment_.max_num_tokens, deployment_.max_model_len.count()))
             : 0;
    const Bytes before = card_.allocated();
    state_->profile_peak.tensors =
        forward_peak(deployment_, state_->stage, deployment_.max_num_tokens, rows);
    state_->profile_peak.moment = "largest layer";
    std::vector<CardMemory::Tensor> made;
    for (const opgraph::LiveTensor& tensor : state_->profile_peak.tensors) {
      const auto one = card_.make(tensor.leaf, tensor.bytes);
      if (!one) {
        return false;
      }
      made.push_back(*one);
    }
    state_->dynamic = card_.allocated() - before + deployment_.cublas_workspace;
    for (const CardMemory::Tensor& tensor : made) {
      state_->memory.free(tensor);
    }
    return true;
  }

  // Generation graphs share one pool; the largest decides it.
  bool graphs() {
    if (deployment_.graph_sizes.empty()) {
      return true;
    }
    if (deployment_.assumed.graphs) {
      graph_driver_ = *deployment_.assumed.graphs;
      return card_.outside(Leaf::kGraphPool, Backing::kDriver, graph_driver_);
    }
    state_->graphs.clear();
    const bool last = state_->stage == deployment_.pp - 1;
    const models::ModelSpec& model = *deployment_.model;
    // Its own kernels sum over ranks.
    const Bytes driver =
        align_up(whole_graph(deployment_.graph_costs, model,
                             models::stage_layers(model, deployment_.shard(state_->stage)),
                             layer_sums(deployment_.tp, false)),
                 allocator::kDriverUnit);
    for (const std::int64_t size : deployment_.graph_sizes) {
      const Bytes before = pool();
      state_->memory.begin_capture();
      std::vector<CardMemory::Tensor> made;
      bool fits = true;
      for (const opgraph::LiveTensor& tensor :
           forward_peak(deployment_, state_->stage, size, last ? size : 0)) {
        const auto one = fits ? card_.make(tensor.leaf, tensor.bytes) : std::nullopt;
        fits = one.has_value();
        if (one) {
          made.push_back(*one);
        }
      }
      for (const CardMemory::Tensor& tensor : made) {
        state_->memory.free(tensor);
      }
      state_->memory.end_capture();
      if (!fits || !card_.outside(Leaf::kGraphPool, Backing::kDriver, driver)) {
        return false;
      }
      graph_driver_ += driver;
      state_->graphs.push_back({"generation", size, pool() - before, driver, {}, {}});
    }
    // In one sum: the driver's unit is larger than most of it.
    const Bytes before = graph_driver();
    const bool fits = card_.correct(Leaf::kGraphPool, Backing::kDriver,
                                    residuals().graph * deployment_.graph_sizes.size());
    graph_driver_ += graph_driver() - before;
    return fits;
  }

  [[nodiscard]] Bytes graph_driver() const {
    return state_->memory.ledger().at(Leaf::kGraphPool, Backing::kDriver);
  }

  void release_graphs() {
    if (graph_driver_ > Bytes{0}) {
      state_->memory.return_outside(Leaf::kGraphPool, Backing::kDriver, graph_driver_);
      graph_driver_ = Bytes{0};
    }
    state_->memory.release_graphs();
    state_->memory.empty_cache();
  }

  [[nodiscard]] Bytes pool() const {
    return state_->memory.ledger().at(Leaf::kGraphPool, Backing::kPrivatePool);
  }

  // Pools come from the driver; several windows share the bytes as the version has it.
  bool kv(std::int64_t tokens) {
    card_.begin("kv");
    const Bytes states = deployment_.state_bytes(state_->stage) * deployment_.max_batch_size;
    pool_bytes_ = token_bytes() * tokens;
    const std::int64_t rows = deployment_.max_batch_size * deployment_.beam_width;
    const Bytes tables =
        Bytes{4} * detail::checked_mul(2 * rows * static_cast<std::int64_t>(pools_.size()),
                                       div_ceil(deployment_.max_model_len.count(),
                                                deployment_.tokens_per_block.count()));
    state_->memory.ledger().transfer(Account::free_of(Backing::kPinnedHost),
                                     Account::cell(Leaf::kKvMetadata, Backing::kPinnedHost),
                                     tables);
    state_->memory.ledger().transfer(Account::free_of(Backing::kPinnedHost),
                                     Account::cell(Leaf::kKvPool, Backing::kPinnedHost),
                                     host_pool());
    if (!card_.outside(Leaf::kKvPool, Backing::kDriver, pool_bytes_ + states) ||
        !card_.outside(Leaf::kKvMetadata, Backing::kDriver, tables)) {
      return refuse("KV cache");
    }
    return card_.end();
  }

  // Several windows share what is given; else whole blocks of it.
  [[nodiscard]] Bytes host_pool() const {
    if (pools_.size() > 1) {
      return deployment_.host_cache;
    }
    return token_bytes() *
           (host_blocks(deployment_, state_->stage).count() * deployment_.tokens_per_block.count());
  }

  bool capture() {
    card_.begin("capture");
    const Bytes before = card_.device_free();
    if (!graphs()) {
      return refuse("Additional executor resources");
    }
    graph_drop_ = before - card_.device_free();
    return card_.end();
  }

  bool rest() {
    card_.begin("warmup");
    if (!forward()) {
      return refuse("Model resources created during usage");
    }
    card_.end();
    card_.begin("ready");
    return card_.end();
  }

 public:
  [[nodiscard]] Bytes pool_bytes() const { return pool_bytes_; }
  [[nodiscard]] Bytes graph_drop() const { return graph_drop_; }

 private:
  const Deployment& deployment_;
  std::unique_ptr<StageState> state_;
  StartupCard card_;
  std::vector<Pool> pools_;
  Bytes graph_driver_;
  Bytes pool_bytes_;
  Bytes graph_drop_;
};

}  // namespace

StageState::StageState(const Deployment& deployment, int stage_number)
    : RankState(deployment.device_total(), stage_number * deployment.tp, deployment.tp,
                deployment.allocator_settings),
      stage(stage_number) {}

Startup simulate_startup(const Deployment& deployment) {
  std::vector<std::unique_ptr<StageStartup>> stages;
  Startup out;
  out.report.total = deployment.device_total();
  std::int64_t tokens = 0;
  const auto run = [&] {
    for (int stage = 0; stage < deployment.pp; ++stage) {
      stages.push_back(std::make_unique<StageStartup>(deployment, stage));
      const bool measured = stages.back()->measure();
      if (stage == 0) {
        out.report.weights = stages.back()->state().weights;
      }
      if (!measured) {
        out.outcome = stages.back()->outcome();
        return false;
      }
      const std::int64_t own = stages.back()->state().tokens;
      tokens = stage == 0 ? own : std::min(tokens, own);
    }
    for (const auto& stage : stages) {
      if (!stage->serve(tokens)) {
        out.outcome = stage->outcome();
        return false;
      }
    }
    return true;
  };
  const bool served = run();
  StageStartup& first = *stages.front();
  if (tokens > 0) {
    const std::int64_t block = deployment.tokens_per_block.count();
    out.report.activation_peak = first.dynamic();
    out.report.non_torch = first.state().outside_torch;
    out.report.kv_tokens = tokens;
    out.report.kv_blocks = tokens / block;
    out.report.block_size = block;
    out.report.max_running_requests = deployment.max_batch_size;
  }
  if (served) {
    out.report.available_kv = first.pool_bytes();
    if (!deployment.graph_sizes.empty()) {
      out.report.cudagraph = first.graph_drop();
    }
  }
  for (const auto& stage : stages) {
    out.stages.push_back(std::move(stage->state()));
  }
  return out;
}

}  // namespace oomcast::trtllm
