#include "sim/engines/sglang/graph_capture.hpp"

#include <algorithm>
#include <cmath>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/startup_tag.hpp"

namespace oomcast::sglang {
namespace {

constexpr auto kCaptureStream = allocator::StreamId{1};
constexpr auto kSecondStream = allocator::StreamId{2};
constexpr const char* kPhase = "capture";

opgraph::StepShape shape_of(std::int64_t tokens) { return {tokens, tokens, tokens}; }

// Tokens of a chunk: short sequences balance the two recurrences, long ones fill the card once
// (choose_cp_chunk_len_host).
std::int64_t delta_chunk(std::int64_t tokens, std::int64_t heads, std::int64_t processors) {
  constexpr std::int64_t kBlock = 64;
  constexpr std::int64_t kStep = 512;
  if (div_ceil(tokens, kStep) * heads * 2 < processors) {
    const auto root =
        static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(tokens * kBlock))));
    return std::max(kBlock, align_up(root, kBlock));
  }
  const std::int64_t most = std::max<std::int64_t>(1, processors / heads);
  return std::max<std::int64_t>(1, div_ceil(div_ceil(tokens, most), kStep)) * kStep;
}

}  // namespace

GraphCapture::GraphCapture(const Deployment& deployment, int stage, const CachePlan& plan,
                           CardMemory& memory)
    : deployment_(deployment), stage_(stage), plan_(plan), memory_(memory) {
  // Larger batches than there are requests never run; the largest that can is captured.
  for (const std::int64_t size : deployment.decode_sizes) {
    if (size <= plan.max_running) {
      decode_sizes_.push_back(size);
    }
  }
  if (!deployment.decode_sizes.empty() && deployment.decode_sizes.back() > plan.max_running &&
      (decode_sizes_.empty() || decode_sizes_.back() < plan.max_running)) {
    decode_sizes_.push_back(plan.max_running);
  }
}

bool GraphCapture::capture_prefills() {
  if (deployment_.prefill_sizes.empty()) {
    return true;
  }
  if (!make_static(prefill_inputs(deployment_, plan_))) {
    return false;
  }
  memory_.use_stream(kCaptureStream);
  bool fits = make_logits_buffer();  // first asked for while prefills warm up
  for (auto size = deployment_.prefill_sizes.rbegin();
       size != deployment_.prefill_sizes.rend() && fits; ++size) {
    fits = capture(Graph::kPrefill, *size);
  }
  memory_.use_stream(allocator::StreamId::kDefault);
  if (last_output_) {
    memory_.free(*last_output_);
    last_output_.reset();
  }
  memory_.empty_cache();
  return fits;
}

bool GraphCapture::capture_decodes() {
  if (decode_sizes_.empty()) {
    return true;
  }
  if (!make_static(decode_inputs(deployment_, decode_sizes_.back())) || !make_logits_buffer()) {
    return false;
  }
  return capture_all(Graph::kDecode);
}

bool GraphCapture::capture_drafts() {
  if (decode_sizes_.empty() || !deployment_.loads_draft(stage_) ||
      deployment_.model->draft_layers.empty()) {
    return true;
  }
  if (deployment_.speculation->steps > 1 &&
      (!make_static(draft_inputs(deployment_, decode_sizes_.back())) ||
       !capture_all(Graph::kDraft))) {
    return false;
  }
  return make_static(draft_extend_inputs(deployment_, decode_sizes_.back())) &&
         capture_all(Graph::kDraftExtend);
}

bool GraphCapture::capture_all(Graph what) {
  memory_.use_stream(kCaptureStream);
  bool fits = true;
  for (auto size = decode_sizes_.rbegin(); size != decode_sizes_.rend() && fits; ++size) {
    fits = make_static(decode_metadata(deployment_, *size)) && capture(what, *size);
  }
  memory_.use_stream(allocator::StreamId::kDefault);
  memory_.empty_cache();
  return fits;
}

bool GraphCapture::correct_decodes() {
  return memory_.correct_outside(Leaf::kGraphPool, Backing::kDriver,
                                 deployment_.assumed.residuals.graph * decode_sizes_.size());
}

bool GraphCapture::make_static(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [this](const opgraph::LiveTensor& tensor) {
    return memory_.allocate(tensor.leaf, tensor.bytes, startup_tag(kPhase, tensor.leaf))
        .has_value();
  });
}

bool GraphCapture::make_logits_buffer() {
  if (logits_made_ || decode_sizes_.empty() || !deployment_.rules.logits_buffer) {
    return true;
  }
  logits_made_ = true;
  return make_static(
      logits_buffer(deployment_, decode_sizes_.back() * deployment_.tokens_per_decode()));
}

const StepProgram& GraphCapture::program(StepKind kind) {
  const auto found = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& known) { return known.first == kind; });
  return found != programs_.end()
             ? found->second
             : programs_.emplace_back(kind, step_program(deployment_, stage_, kind)).second;
}

bool GraphCapture::capture(Graph what, std::int64_t size) {
  static constexpr std::array<const char*, 4> kModes{"breakable", "full", "draft", "draft_extend"};
  const Bytes free_before = memory_.ledger().device_free();
  const Bytes pool_before = memory_.ledger().at(Leaf::kGraphPool, Backing::kPrivatePool);
  const Bytes allocated_before = memory_.torch().stats().allocated;
  memory_.torch().reset_peaks();
  if (!modules_loaded_) {
    modules_loaded_ = true;
    if (!memory_.take_outside(Leaf::kSystemContext, Backing::kContext,
                              deployment_.rules.first_capture_modules)) {
      return false;
    }
  }
  if (!warm_up(what, size)) {
    return false;
  }
  CapturedGraph graph{
      kModes.at(static_cast<std::size_t>(what)), size, {}, driver_bytes(what), {}, {}};
  graph.warm_up_peak = memory_.torch().stats().allocated_peak - allocated_before;
  const bool first_prefill =
      what == Graph::kPrefill &&
      std::none_of(captured_.begin(), captured_.end(),
                   [&](const CapturedGraph& one) { return one.mode == graph.mode; });
  if (!record(what, size) || (first_prefill && !make_outputs(size)) ||
      !memory_.take_outside(Leaf::kGraphPool, Backing::kDriver, graph.driver)) {
    return false;
  }
  graph.pool_growth = memory_.ledger().at(Leaf::kGraphPool, Backing::kPrivatePool) - pool_before;
  graph.free_drop = free_before - memory_.ledger().device_free();
  captured_.push_back(graph);
  return true;
}

// Twice; the runner's variable holds the hidden states of one run until the next has returned.
bool GraphCapture::warm_up(Graph what, std::int64_t size) {
  constexpr int kRuns = 2;
  if (!grow_scratch(what != Graph::kPrefill, size)) {
    return false;
  }
  for (int i = 0; i < kRuns; ++i) {
    StepKind kind = kind_of(what, size);
    kind.first_on_stream = stream_is_new_;
    stream_is_new_ = false;
    kind.keeps_hidden_of = 0;
    if (!run(program(kind), tokens_of(what, size), false)) {
      return false;
    }
    if (what != Graph::kPrefill) {
      continue;
    }
    const std::int64_t row =
        detail::checked_mul(deployment_.model->hidden, models::bits_of(deployment_.dtype) / 8);
    const auto output =
        memory_.allocate(Leaf::kRuntimeActivations, Bytes{detail::checked_mul(size, row)},
                         startup_tag(kPhase, Leaf::kRuntimeActivations));
    if (!output) {
      return false;
    }
    if (last_output_) {
      memory_.free(*last_output_);
    }
    last_output_ = output;
  }
  return true;
}

bool GraphCapture::record(Graph what, std::int64_t size) {
  const bool whole = what != Graph::kPrefill;
  StepKind kind = kind_of(what, size);
  kind.keeps_logits = whole && !deployment_.rules.logits_buffer;
  const StepProgram& recorded = program(kind);
  // Pieces begin their captures themselves and do not empty the cache; torch.cuda.graph does.
  memory_.begin_capture(whole);
  const bool fits = run(recorded, tokens_of(what, size), !whole);
  memory_.end_capture();
  return fits;
}

bool GraphCapture::make(const opgraph::Program::Step& step, const opgraph::OpGraph& graph,
                        const opgraph::StepShape& shape, std::vector<CardMemory::Tensor>& live) {
  return std::all_of(step.made.begin(), step.made.end(), [&](opgraph::TensorId id) {
    const opgraph::TensorInfo& tensor = graph.info(id);
    const auto made =
        memory_.allocate(tensor.leaf, tensor.bytes.at(shape), startup_tag(kPhase, tensor.leaf));
    if (made) {
      live[index_of(id)] = *made;
    }
    return made.has_value();
  });
}

// Runs a program; with `pieces` what lies between them happens in ordinary memory.
bool GraphCapture::run(const StepProgram& step_program, std::int64_t tokens, bool pieces) {
  const opgraph::Program& program = step_program.program;
  const opgraph::OpGraph& graph = program.graph();
  const opgraph::StepShape shape = shape_of(tokens);
  std::vector<CardMemory::Tensor> live(graph.tensor_count());
  bool inside = true;
  std::uint32_t index = 0;
  for (const opgraph::Program::Step& step : program.steps()) {
    const bool wanted = !graph.info(opgraph::OpId{index}).between_pieces;
    if (pieces && wanted != inside) {
      if (wanted) {
        memory_.begin_capture(false);
      } else {
        memory_.end_capture();
      }
      inside = wanted;
    }
    const bool beside = step_program.on_second_stream[index++];
    if (beside) {
      memory_.use_stream(kSecondStream);
    }
    const bool made_all = make(step, graph, shape, live);
    if (beside) {
      memory_.use_stream(kCaptureStream);
    }
    if (!made_all) {
      if (pieces && !inside) {
        memory_.begin_capture(false);
      }
      return false;
    }
    for (const opgraph::TensorId id : step.freed) {
      memory_.free(live[index_of(id)]);
    }
  }
  return true;
}

std::int64_t GraphCapture::tokens_of(Graph what, std::int64_t size) const {
  switch (what) {
    case Graph::kPrefill:
      return size;
    case Graph::kDraft:
      return size * deployment_.speculation->topk;
    case Graph::kDecode:
    case Graph::kDraftExtend:
      break;
  }
  return size * deployment_.tokens_per_decode();
}

StepKind GraphCapture::kind_of(Graph what, std::int64_t size) const {
  const bool decode = what != Graph::kPrefill;
  StepKind kind = step_kind(deployment_, decode, tokens_of(what, size));
  kind.captured = true;
  kind.pool = plan_.tokens;
  if (decode && deployment_.decode_backend == "fa3") {
    kind.batch = size;
    kind.tokens_each = tokens_of(what, size) / size;
  }
  if (deployment_.speculation) {
    kind.draft_passes = what == Graph::kDraft         ? deployment_.speculation->steps - 1
                        : what == Graph::kDraftExtend ? 1
                                                      : 0;
    // All that were verified; of what was taken in the last.
    kind.keeps_hidden_of = what == Graph::kDecode        ? 1
                           : what == Graph::kDraftExtend ? deployment_.tokens_per_decode()
                                                         : 0;
  }
  return kind;
}

// FlashInfer's gated delta rule of compute capability 9 (gdn_kernels/delta_rule_dsl: varlen_helper
// and delta_rule_cp_sm90): where heads leave half of the multiprocessors idle, a sequence is cut
// into chunks. Inverses of blocks of 64 tokens, then transfers, states and fixed states of chunks
// grow as needed, and smaller ones stay. Below 1,024 tokens projections run on two streams.
bool GraphCapture::grow_scratch(bool decode, std::int64_t tokens) {
  constexpr std::int64_t kHopper = 9;
  constexpr std::int64_t kDual = 1024;
  constexpr std::int64_t kBlock = 64;
  constexpr std::int64_t kInverse = kBlock * kBlock * 2;
  constexpr std::int64_t kFloat = 4;
  const auto& kinds = deployment_.model->layer_kinds;
  const auto layer = std::find_if(kinds.begin(), kinds.end(), [](const models::LayerSpec& one) {
    return one.attention.kind == models::AttentionKind::kGatedDeltaNet;
  });
  if (layer == kinds.end()) {
    return true;
  }
  if (tokens < kDual && !second_stream_used_ && !models::has_experts(*deployment_.model)) {
    second_stream_used_ = true;
    memory_.use_stream(kSecondStream);
    const bool fits = make_static({{"cuBLAS workspace", "by GPU generation", "",
                                    Leaf::kWorkspaceGemm, deployment_.cublas_workspace}});
    memory_.use_stream(kCaptureStream);
    if (!fits) {
      return false;
    }
  }
  const models::StateSpec& state = layer->attention.state;
  const std::int64_t heads = div_ceil(state.heads, deployment_.attention_tp());
  const std::int64_t processors = deployment_.gpu.sm_count;
  const bool triton = deployment_.launch.text("linear-attn-prefill-backend") ==
                      std::optional<std::string>("triton");
  if (decode || triton || !deployment_.rules.delta_net_chunks ||
      deployment_.gpu.compute_major != kHopper || heads * 2 >= processors) {
    return true;
  }
  const std::int64_t chunks = div_ceil(tokens, delta_chunk(tokens, heads, processors));
  const Bytes per_chunk{heads * state.head_rows * state.head_rows * kFloat};
  const std::array<Bytes, 4> wanted{Bytes{kInverse} * (heads * div_ceil(tokens, kBlock)),
                                    per_chunk * chunks, per_chunk * chunks, per_chunk * chunks};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] > scratch_[i]) {
      scratch_[i] = wanted[i];
      if (!make_static({{"chunks of delta nets", "chunks x heads x d x d x 4", "",
                         Leaf::kWorkspaceAttention, wanted[i]}})) {
        return false;
      }
    }
  }
  return true;
}

// Hidden states of captured prefills go to one buffer of the largest size.
bool GraphCapture::make_outputs(std::int64_t size) {
  const std::int64_t row =
      detail::checked_mul(deployment_.model->hidden, models::bits_of(deployment_.dtype) / 8);
  return make_static({{"hidden states of prefills", "S x H x b", "", Leaf::kGraphStaticIo,
                       Bytes{detail::checked_mul(size, row)}}});
}

// A draft's pass is taken as one through a last layer of the model.
Bytes GraphCapture::driver_bytes(Graph what) const {
  const models::ModelSpec& model = *deployment_.model;
  const LayerSums sums = layer_sums(deployment_.gpu, deployment_.tp,
                                    {comm::Engine::kSglang, deployment_.launch.version},
                                    deployment_.custom_all_reduce);
  models::LayerRange layers = models::stage_layers(model, deployment_.shard(stage_));
  if (what == Graph::kDraft || what == Graph::kDraftExtend) {
    const int passes =
        what == Graph::kDraft ? static_cast<int>(deployment_.speculation->steps) - 1 : 1;
    layers = {std::max(0, model.layer_count() - passes), model.layer_count()};
  }
  const auto bytes = what == Graph::kPrefill ? graph_pieces : whole_graph;
  return align_up(bytes(deployment_.graph_costs, model, layers, sums), allocator::kDriverUnit);
}

}  // namespace oomcast::sglang
