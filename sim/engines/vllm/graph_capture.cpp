#include "sim/engines/vllm/graph_capture.hpp"

#include <algorithm>
#include <vector>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/startup_tag.hpp"
#include "sim/engines/vllm/program_run.hpp"
#include "sim/engines/vllm/resident.hpp"

namespace oomcast::vllm {
namespace {

constexpr auto kCaptureStream = allocator::StreamId{1};
constexpr auto kSharedExpertsStream = allocator::StreamId{2};
constexpr Bytes kSmallestGraph = kMiB;  // what the engine counts at least per graph
constexpr std::size_t kTrialSizes = 2;
// FlashAttention 3 splits the keys of no more sequences in a batch: the kernel that prepares splits
// takes 32 x 31 (hopper/flash_api.cpp; a recorded capture of gpt-oss-20b at 1024 and 1008 has
// none).
constexpr std::int64_t kMostSplitSequences = 992;

// Batches of no more tokens run shared experts beside the routed ones
// (VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD).
constexpr std::int64_t kMostTokensBeside = 256;

opgraph::Program capture_program(const Deployment& deployment, int stage, AttentionRun attention,
                                 bool first_on_stream) {
  const Execution execution = deployment.enforce_eager ? Execution::kEager : Execution::kCompiled;
  return opgraph::Program(step_graph(deployment, stage,
                                     {.execution = execution,
                                      .sampling = Sampling::kNone,
                                      .attention = attention,
                                      .first_on_stream = first_on_stream,
                                      .first_capture = first_on_stream && deployment.runner_v2}));
}

std::vector<Bytes> beside_routed_experts(const Deployment& deployment, models::LayerRange range) {
  constexpr Version kSharedHandedOver{0, 11, 1};
  if (deployment.launch.version < kSharedHandedOver || !uses_cublas(deployment)) {
    return {};
  }
  const Bytes element{models::bits_of(deployment.dtype) / 8};
  for (int i = range.begin; i < range.end; ++i) {
    const models::FfnSpec& ffn = deployment.model->layer(i).ffn;
    if (ffn.kind == models::FfnKind::kMoe && ffn.shared_width > 0) {
      const std::int64_t width = div_ceil(ffn.shared_width, deployment.tp);
      return {element * (ffn.gated ? 2 * width : width), element * width,
              element * deployment.model->hidden};
    }
  }
  return {};
}

// Whether the largest captures, which come first, have more.
bool has_whole(const Deployment& deployment) {
  const std::vector<std::int64_t>& sizes = deployment.capture_sizes;
  return splits_keys(deployment) && deployment.max_num_seqs > kMostSplitSequences &&
         std::any_of(sizes.begin(), sizes.end(),
                     [](std::int64_t size) { return size > kMostSplitSequences; });
}

// The first runner captures pieces without attention; the second runs it beside them.
AttentionRun beside_pieces(const Deployment& deployment) {
  return deployment.runner_v2 ? AttentionRun::kSplits : AttentionRun::kSkipped;
}
AttentionRun beside_first_pieces(const Deployment& deployment) {
  return deployment.runner_v2 && has_whole(deployment) ? AttentionRun::kWhole
                                                       : beside_pieces(deployment);
}

std::vector<std::int64_t> descending(std::vector<std::int64_t> sizes) {
  std::sort(sizes.rbegin(), sizes.rend());
  return sizes;
}

LayerSums sums_of(const Deployment& deployment) {
  return layer_sums(deployment.gpu, deployment.tp, {comm::Engine::kVllm, deployment.launch.version},
                    !deployment.launch.on("disable-custom-all-reduce"));
}

Bytes driver_bytes(const Deployment& deployment, GraphMode mode, models::LayerRange range) {
  const auto bytes = mode == GraphMode::kFull ? whole_graph : graph_pieces;
  // With adapters each size is captured twice, without and with them.
  const std::int64_t captures = deployment.launch.on("enable-lora") ? 2 : 1;
  return bytes(deployment.graph_costs, *deployment.model, range, sums_of(deployment)) * captures;
}

opgraph::StepShape decode_shape(std::int64_t size) { return {size, size, size}; }

}  // namespace

std::string_view name_of(GraphMode mode) {
  return mode == GraphMode::kPiecewise ? "piecewise" : "full";
}

CapturePrograms::CapturePrograms(const Deployment& deployment, int stage)
    : first_(capture_program(deployment, stage, beside_first_pieces(deployment), true)),
      piecewise_(capture_program(deployment, stage, beside_pieces(deployment), false)),
      decode_tokens_(deployment.decode_tokens()),
      most_sequences_(deployment.max_num_seqs) {
  if (has_whole(deployment)) {
    whole_.emplace(capture_program(deployment, stage, AttentionRun::kWhole, false));
  }
  if (beside_pieces(deployment) != AttentionRun::kSplits) {
    full_.emplace(capture_program(deployment, stage, AttentionRun::kSplits, false));
  }
  const models::LayerRange range = models::stage_layers(*deployment.model, deployment.shard(stage));
  beside_ = beside_routed_experts(deployment, range);
  if (has_piecewise(deployment.cudagraph_mode) && !deployment.capture_sizes.empty()) {
    modes_.push_back({GraphMode::kPiecewise, descending(deployment.capture_sizes),
                      driver_bytes(deployment, GraphMode::kPiecewise, range)});
  }
  const auto full = deployment.full_capture_sizes();
  if (!full.empty()) {
    modes_.push_back(
        {GraphMode::kFull, descending(full), driver_bytes(deployment, GraphMode::kFull, range)});
  }
}

const opgraph::Program& CapturePrograms::of(GraphMode mode, std::int64_t size) const {
  const bool full = mode == GraphMode::kFull;
  const std::int64_t sequences = full ? size / decode_tokens_ : std::min(size, most_sequences_);
  if (whole_ && sequences > kMostSplitSequences && (full || !full_)) {
    return *whole_;
  }
  return full && full_ ? *full_ : piecewise_;
}

std::uint64_t CapturePrograms::digest() const {
  Digest digest;
  for (const opgraph::Program* program :
       {&first_, &piecewise_, full_ ? &*full_ : &piecewise_, whole_ ? &*whole_ : &piecewise_}) {
    digest.add_word(program->digest());
  }
  for (const Bytes bytes : beside_) {
    digest.add_word(static_cast<std::uint64_t>(bytes.count()));
  }
  for (const Mode& mode : modes_) {
    digest.add_word(static_cast<std::uint64_t>(mode.mode));
    digest.add_word(static_cast<std::uint64_t>(mode.driver.count()));
    for (const std::int64_t size : mode.sizes) {
      digest.add_word(static_cast<std::uint64_t>(size));
    }
  }
  return digest.value();
}

CaptureEffects simulate_captures(const Deployment& deployment, const CapturePrograms& programs) {
  CaptureEffects effects;
  CardMemory card(allocator::kMaxDeviceBytes, 0, deployment.allocator_settings);
  GraphCapture graphs(deployment, programs, card);
  const auto run = [&](bool trial, CaptureEffect& effect) {
    const CardMemory::Sums before = card.sums();
    const Bytes used = card.ledger().views().device_used;
    card.torch().device().reset_highest();
    const bool fits = graphs.run(trial);
    effect.graphs = graphs.captured();
    effect.highest = fits ? card.torch().device().highest() - used : allocator::kMaxDeviceBytes;
    if (trial) {
      graphs.release();
    }
    effect.change = card.sums() - before;
  };
  if (deployment.rules.graph_estimate_possible) {
    run(true, effects.trial);
  }
  run(false, effects.all);
  return effects;
}

GraphCapture::GraphCapture(const Deployment& deployment, const CapturePrograms& programs,
                           CardMemory& memory, const CaptureEffects* known)
    : deployment_(deployment), programs_(programs), memory_(memory), known_(known) {}

bool GraphCapture::run(bool trial) {
  from_memory_ = known_ != nullptr && has_room_for(trial ? known_->trial : known_->all);
  if (from_memory_) {
    apply(trial ? known_->trial : known_->all);
    return true;
  }
  memory_.use_stream(kCaptureStream);
  bool fits = true;
  for (const CapturePrograms::Mode& mode : programs_.modes()) {
    const bool sampled = trial && (!deployment_.runner_v2 || mode.mode == GraphMode::kFull);
    const std::size_t count =
        sampled ? std::min(kTrialSizes, mode.sizes.size()) : mode.sizes.size();
    for (std::size_t i = 0; i < count && fits; ++i) {
      fits = capture(mode, mode.sizes[i]);
    }
  }
  memory_.use_stream(allocator::StreamId::kDefault);
  return fits && (trial || memory_.correct_outside(Leaf::kGraphPool, Backing::kDriver,
                                                   residual(captured_.size())));
}

bool GraphCapture::has_room_for(const CaptureEffect& effect) const {
  return effect.highest <= memory_.ledger().device_free();
}

// The first capture returns what is cached to the driver.
void GraphCapture::apply(const CaptureEffect& effect) {
  const Bytes free_before = memory_.ledger().device_free();
  memory_.empty_cache();
  const Bytes returned = memory_.ledger().device_free() - free_before;
  memory_.add(effect.change);
  ran_beside_ = true;
  captured_ = effect.graphs;
  if (!captured_.empty()) {
    captured_.front().free_drop -= returned;
  }
}

bool GraphCapture::capture(const CapturePrograms::Mode& mode, std::int64_t size) {
  const Bytes free_before = memory_.ledger().device_free();
  const Bytes pool_before = memory_.ledger().at(Leaf::kGraphPool, Backing::kPrivatePool);
  const Bytes allocated_before = memory_.torch().stats().allocated;
  memory_.torch().reset_peaks();
  const opgraph::Program& program = programs_.of(mode.mode, size);
  CapturedGraph graph{name_of(mode.mode), size, {}, driver_of(mode), {}, {}};
  if (!warm_up(stream_is_new_ ? programs_.first() : program, size) || !run_beside(size)) {
    return false;
  }
  stream_is_new_ = false;
  graph.warm_up_peak = memory_.torch().stats().allocated_peak - allocated_before;
  const Bytes free_between = memory_.ledger().device_free();
  if (!record(mode.mode, program, size)) {
    return false;
  }
  if (!memory_.take_outside(Leaf::kGraphPool, Backing::kDriver, graph.driver)) {
    return false;
  }
  graph.pool_growth = memory_.ledger().at(Leaf::kGraphPool, Backing::kPrivatePool) - pool_before;
  graph.free_drop = free_before - memory_.ledger().device_free();
  graph.record_drop = free_between - memory_.ledger().device_free();
  captured_.push_back(graph);
  return true;
}

// What the graph adds to the units that the driver holds for all of them.
Bytes GraphCapture::driver_of(const CapturePrograms::Mode& mode) {
  const Bytes held = align_up(driver_exact_, allocator::kDriverUnit);
  driver_exact_ += mode.driver;
  return align_up(driver_exact_, allocator::kDriverUnit) - held;
}

bool GraphCapture::warm_up(const opgraph::Program& program, std::int64_t size) {
  const auto nothing = [](opgraph::OpId /*op*/) {};
  return !run_program(program, decode_shape(size), "capture", memory_, nothing, nothing,
                      stream_is_new_ ? &made_for_stream_ : nullptr);
}

// Shared experts' first run on their stream: its cuBLAS workspace stays, what they make stays
// cached for the stream. Later ones find both.
bool GraphCapture::run_beside(std::int64_t size) {
  if (programs_.beside().empty() || ran_beside_ || size > kMostTokensBeside) {
    return true;
  }
  ran_beside_ = true;
  memory_.use_stream(kSharedExpertsStream);
  const auto make = [&](Leaf leaf, Bytes bytes) {
    return memory_.allocate(leaf, bytes, startup_tag("capture", leaf));
  };
  std::vector<CardMemory::Tensor> transient;
  bool fits = make(Leaf::kWorkspaceGemm, deployment_.cublas_workspace).has_value();
  for (const Bytes bytes : programs_.beside()) {
    const auto made = fits ? make(Leaf::kRuntimeIntermediates, bytes * size) : std::nullopt;
    fits = made.has_value();
    if (made) {
      transient.push_back(*made);
    }
  }
  for (const CardMemory::Tensor& tensor : transient) {
    memory_.free(tensor);
  }
  memory_.use_stream(kCaptureStream);
  return fits;
}

bool GraphCapture::record(GraphMode mode, const opgraph::Program& program, std::int64_t size) {
  // Piecewise: attention runs between the graphs, in ordinary memory. The first runner keeps all
  // but the first piece's graph from emptying the cache.
  bool recording = false;
  bool first = true;
  const auto failed = run_program(
      program, decode_shape(size), "capture", memory_,
      [&](opgraph::OpId op) {
        const bool wanted = mode == GraphMode::kFull || !program.graph().info(op).between_pieces;
        if (wanted && !recording) {
          memory_.begin_capture(first || deployment_.runner_v2);
          first = false;
        } else if (!wanted && recording) {
          memory_.end_capture();
        }
        recording = wanted;
      },
      [](opgraph::OpId /*op*/) {});
  if (recording) {
    memory_.end_capture();
  }
  return !failed;
}

// What a calibration found per graph, in one sum: the driver's unit is larger than most of it.
Bytes GraphCapture::residual(std::size_t graphs) const {
  return deployment_.assumed.residuals.graph * graphs;
}

Bytes GraphCapture::estimate() const {
  const std::vector<CapturePrograms::Mode>& modes = programs_.modes();
  std::vector<std::vector<const CapturedGraph*>> samples(modes.size());
  Bytes all;
  for (const CapturedGraph& graph : captured_) {
    const auto mode = std::find_if(
        modes.begin(), modes.end(),
        [&](const CapturePrograms::Mode& one) { return name_of(one.mode) == graph.mode; });
    samples[static_cast<std::size_t>(mode - modes.begin())].push_back(&graph);
    all += graph.free_drop;
  }
  Bytes largest_first;
  Bytes further;
  std::size_t graphs = 0;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    graphs += modes[i].sizes.size();
    const auto rest = static_cast<std::int64_t>(modes[i].sizes.size()) - 1;
    if (samples[i].empty()) {
      continue;
    }
    const CapturedGraph* second = samples[i].size() > 1 ? samples[i][1] : nullptr;
    largest_first = std::max(largest_first, samples[i].front()->free_drop);
    if (!deployment_.runner_v2) {
      further += std::max(second != nullptr ? second->free_drop : Bytes{0}, kSmallestGraph) * rest;
    } else if (modes[i].mode == GraphMode::kFull && second != nullptr) {
      // The second sample stands for all further ones. It may be negative, as its capture returns
      // what the warm-up left cached, but counts as a driver's graph at least.
      further += std::max(second->record_drop, kSmallestGraph) * rest - second->record_drop;
    }
  }
  return std::max(Bytes{0},
                  (deployment_.runner_v2 ? all : largest_first) + further + residual(graphs));
}

void GraphCapture::release() {
  if (from_memory_) {
    captured_.clear();  // the effect of a trial is without its graphs
    return;
  }
  for (const CapturedGraph& graph : captured_) {
    memory_.return_outside(Leaf::kGraphPool, Backing::kDriver, graph.driver);
  }
  captured_.clear();
  driver_exact_ = Bytes{0};
  stream_is_new_ = true;  // a later capture gets another stream
  // PyTorch 2.14: with a graph goes the cuBLAS workspace of the stream it was captured on.
  for (const CardMemory::Tensor& tensor : made_for_stream_) {
    if (tensor.leaf != Leaf::kWorkspaceGemm || deployment_.rules.graphs_own_workspace) {
      memory_.free(tensor);
    }
  }
  made_for_stream_.clear();
  memory_.release_graphs();
  memory_.empty_cache();
}

}  // namespace oomcast::vllm
