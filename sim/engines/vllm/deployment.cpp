#include "sim/engines/vllm/deployment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/case_conv.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/engines/environment.hpp"
#include "sim/engines/resolver.hpp"
#include "sim/engines/vllm/expert_parallel.hpp"
#include "sim/engines/vllm/host_pool.hpp"
#include "sim/engines/vllm/known.hpp"
#include "sim/engines/vllm/kv_packed.hpp"
#include "sim/engines/vllm/kv_transfer.hpp"
#include "sim/engines/vllm/resident.hpp"
#include "sim/engines/vllm/sparse_mla.hpp"

namespace oomcast::vllm {
namespace {

using models::AttentionKind;
using models::DType;
using models::FfnKind;

constexpr std::int64_t kBatchedExpertTokens = 256;  // default of a step with batched experts
constexpr double kMostHostGib = 1 << 20;
constexpr std::int64_t kMostIndexerMib = 1 << 20;
constexpr std::int64_t kMostInBatch = std::int64_t{1} << 24;  // tokens or sequences of one step

// Resolves one launch step by step; every method reads as one paragraph of the engine's rules.
class Resolver : private LaunchResolver<Deployment> {
 public:
  Resolver(launch::Launch&& launch, const std::shared_ptr<const models::ModelSpec>& model,
           const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed)
      : LaunchResolver(startup_rules_for(launch.version), std::move(launch), model, gpu, card,
                       assumed) {}

  Deployment run() {
    refuse_what_is_not_modelled();
    kv_transfer(line(), problems_);
    warn_of_compilation();
    check_known(line(), model(), problems_);
    parallelism();
    dtypes();
    model_length();
    speculation();
    batch_limits();
    features();
    out_.exchange = expert_exchange(out_, problems_);
    if (out_.rules.pplx_falls_back && out_.launch.text("all2all-backend") == "pplx") {
      out_.warnings.emplace_back(
          "--all2all-backend pplx is removed: taken as allgather_reducescatter, as vLLM does");
    }
    graphs();
    torch_settings();
    if (const auto mib = number_variable<std::int64_t>(line(), "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
                                                       1, kMostIndexerMib, problems_)) {
      out_.indexer_logits = kMiB * *mib;
    }
    warn_of_unrecorded_kernels();
    measured_values();
    notes();
    problems_.raise_if_any();
    check_host_pool(out_, problems_);
    problems_.raise_if_any();
    return std::move(out_);
  }

 private:
  void warn_of_compilation() {
    static const std::set<std::string, std::less<>> kModelled = {
        "cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"};
    if (const Json* config = line().json("compilation-config"); config && config->is_object()) {
      for (const auto& [key, value] : config->items()) {
        if (kModelled.count(key) == 0) {
          out_.warnings.push_back(fmt::format("compilation-config.{} is not modelled", key));
        }
      }
    }
  }

  void parallelism() {
    out_.tp = parallel("tensor-parallel-size");
    out_.pp = parallel("pipeline-parallel-size");
    out_.dp = parallel("data-parallel-size");
    if (line().on("enable-expert-parallel") && models::has_experts(model())) {
      out_.ep = out_.tp * out_.dp;
    }
    expert_copies();
    micro_batches();
    context_parallel();
    try {
      models::check_sharding(model(), out_.shard(0));
    } catch (const ConfigError& error) {
      problems_.take(error);
    }
  }

  // Batches split in two or more so that one part's tokens travel while another's are computed.
  void micro_batches() {
    const std::int64_t asked = line().integer("ubatch-size").value_or(0);
    constexpr std::int64_t kMost = 64;
    if (asked > kMost) {
      complain("ubatch-size", std::to_string(asked), fmt::format("at most {}", kMost));
      return;
    }
    out_.micro_batches =
        static_cast<int>(std::max<std::int64_t>(asked, line().on("enable-dbo") ? 2 : 1));
    const std::string backend = line().text("all2all-backend").value_or("");
    if (out_.micro_batches > 1 && backend != "deepep_low_latency" &&
        backend != "deepep_high_throughput") {
      complain(line().on("enable-dbo") ? "enable-dbo" : "ubatch-size",
               std::to_string(out_.micro_batches),
               "--all2all-backend deepep_low_latency or deepep_high_throughput",
               "no other backend runs micro-batches");
    }
  }

  void expert_copies() {
    const Json* copies = line().json("eplb-config", "num_redundant_experts");
    if (copies == nullptr) {
      return;
    }
    constexpr std::int64_t kMost = 1 << 16;
    const bool usable = copies->is_number_integer() && *copies >= 0 && *copies <= kMost;
    if (!usable || (*copies > 0 && (!line().on("enable-eplb") || out_.ep == 1))) {
      complain("eplb-config", copies->dump(),
               fmt::format("num_redundant_experts of 0 to {}; above 0 with --enable-eplb and "
                           "--enable-expert-parallel",
                           kMost));
      return;
    }
    out_.redundant_experts = copies->get<int>();
  }

  // Each rank of a tensor group that holds the same heads keeps its part of the tokens.
  void context_parallel() {
    out_.dcp = static_cast<int>(line().integer("decode-context-parallel-size").value_or(1));
    if (out_.dcp == 1) {
      return;
    }
    std::int64_t heads = 1;
    for (const models::LayerSpec& layer : model().layer_kinds) {
      heads =
          std::max(heads, layer.attention.kind == AttentionKind::kMla ? std::int64_t{1}
                                                                      : layer.attention.kv_heads);
    }
    const std::int64_t copies = std::max<std::int64_t>(1, out_.tp / heads);
    if (out_.dcp < 1 || copies % out_.dcp != 0) {
      complain(
          "decode-context-parallel-size", std::to_string(out_.dcp),
          fmt::format("a divisor of {}: ranks that hold the same KV heads (tensor-parallel-size "
                      "{} over {} heads)",
                      copies, out_.tp, heads),
          "");
      out_.dcp = 1;
    }
  }

  void speculation() {
    out_.speculation = read_speculation(line(), model(), out_.assumptions, problems_);
    if (out_.speculation && out_.speculation->draft) {
      try {
        models::check_sharding(*out_.speculation->draft, {.tp = out_.tp});
      } catch (const ConfigError& error) {
        problems_.take(error);
      }
    }
    if (out_.speculation) {
      out_.assumptions.push_back(
          fmt::format("spec_acceptance = {}: probability that a draft is right if those before it "
                      "were; replays "
                      "alone use it{}",
                      out_.acceptance(),
                      out_.assumed.spec_acceptance ? "" : " (give --assume spec_acceptance=P)"));
    }
  }

  [[nodiscard]] bool without_bfloat16() const { return out_.gpu.compute_major < 8; }
  // vllm/config/model.py _FLOAT16_NOT_SUPPORTED_MODELS.
  [[nodiscard]] DType preferred_without_bfloat16() const {
    const std::string& family = model().family;
    const bool unstable = family == "gemma2" || family == "gemma3" || family == "glm4";
    return unstable ? DType::kFloat32 : DType::kFloat16;
  }

  void dtypes() {
    const std::string asked = line().text("dtype").value_or("auto");
    DType dtype = model().dtype;
    if (asked != "auto") {
      const auto parsed = models::parse_dtype(asked);
      if (!parsed || (*parsed != DType::kBFloat16 && *parsed != DType::kFloat16 &&
                      *parsed != DType::kFloat32)) {
        complain("dtype", asked, "auto, half, float16, bfloat16, float or float32");
      } else {
        dtype = *parsed;
      }
    } else if (dtype == DType::kFloat32) {
      dtype = without_bfloat16() ? preferred_without_bfloat16() : DType::kBFloat16;
      out_.assumptions.emplace_back("dtype auto: a float32 checkpoint is loaded with 16 bits");
    } else if (dtype == DType::kBFloat16 && without_bfloat16()) {
      dtype = preferred_without_bfloat16();
      out_.assumptions.push_back(
          fmt::format("dtype auto: {} as the card has no bfloat16", models::name_of(dtype)));
    }
    if (dtype == DType::kBFloat16 && without_bfloat16()) {
      complain("dtype", "bfloat16",
               fmt::format("float16 or float32 on {} (compute capability {}.{})", out_.gpu.name,
                           out_.gpu.compute_major, out_.gpu.compute_minor),
               "use --dtype half");
    }
    out_.dtype = dtype;
    out_.kv_dtype = dtype;
    const std::string kv = line().text("kv-cache-dtype").value_or("auto");
    if (kv != "auto") {
      kv_format(kv);
    } else if (model().quantization && model().quantization->kv_cache.rfind("fp8", 0) == 0 &&
               line().at_least(0, 14)) {
      out_.kv_dtype = DType::kFloat8;
      out_.assumptions.emplace_back("kv-cache-dtype auto: the checkpoint asks for fp8");
    }
  }

  void kv_format(const std::string& asked) {
    static const std::map<std::string, KvFormat, std::less<>> kScaled = {
        {"nvfp4", KvFormat::kNvfp4},
        {"int8_per_token_head", KvFormat::kTokenScale8},
        {"fp8_per_token_head", KvFormat::kTokenScale8},
        {"int4_per_token_head", KvFormat::kTokenScale4}};
    const auto scaled = kScaled.find(asked);
    const auto parsed = scaled != kScaled.end() || asked.rfind("fp8", 0) == 0
                            ? std::optional<DType>(DType::kFloat8)
                            : models::parse_dtype(asked);
    if (!parsed) {
      complain("kv-cache-dtype", asked,
               "auto, bfloat16, float16, an fp8 type, nvfp4 or int8_per_token_head",
               "other KV formats are not modelled yet");
      return;
    }
    out_.kv_dtype = *parsed;
    if (scaled != kScaled.end()) {
      out_.kv_format = scaled->second;
    }
  }

  void model_length() {
    const Tokens derived = model().length.derived;
    const auto given = line().integer("max-model-len");
    const bool automatic = given && *given == -1;
    if (automatic && !line().at_least(0, 14)) {
      complain("max-model-len", "auto", "a number of tokens", "vLLM 0.14.0 and newer fit it");
    }
    out_.fits_model_len = automatic;
    if (!given || automatic) {
      out_.max_model_len = derived;
      if (model().length.key.empty()) {
        out_.assumptions.push_back(
            fmt::format("max-model-len {}: the config has no length key", derived.count()));
      }
      return;
    }
    constexpr std::int64_t kLongest = std::int64_t{1} << 31;
    if (*given > kLongest) {
      complain("max-model-len", std::to_string(*given), fmt::format("1 to {}", kLongest));
      out_.max_model_len = derived;
      return;
    }
    out_.max_model_len = Tokens{*given};
    const bool may_exceed = line().variable("VLLM_ALLOW_LONG_MAX_MODEL_LEN").value_or("0") == "1";
    if (*given < 1) {
      complain("max-model-len", std::to_string(*given), "at least 1");
    } else if (out_.max_model_len > derived && !may_exceed) {
      complain(
          "max-model-len", std::to_string(*given),
          fmt::format("at most {}, the length derived from the model's config", derived.count()),
          "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 overrides this");
    }
  }

  // Defaults depend on the card's memory; an explicit value stands (facts: vLLM 1.1).
  void batch_limits() {
    const double memory_gib = to_gib(out_.gpu.nvml_total);
    const bool a100 =
        boost::algorithm::to_lower_copy(out_.gpu.name).find("a100") != std::string::npos;
    const bool small_unified = out_.gpu.unified_memory && out_.rules.unified_memory_is_small;
    const bool large = memory_gib >= 70 && !a100 && !small_unified;
    std::int64_t tokens = large ? 8192 : 2048;
    std::int64_t seqs = large ? 1024 : 256;
    if (memory_gib >= 160) {
      tokens = out_.rules.batch_tokens_huge_card;
    }
    const auto given_tokens = line().integer("max-num-batched-tokens");
    const auto given_seqs = line().integer("max-num-seqs");
    if (line().text("performance-mode").value_or("") == "throughput" && !given_tokens &&
        !given_seqs) {
      tokens *= 2;
      seqs *= 2;
    }
    seqs = given_seqs.value_or(seqs);
    if (seqs > kMostInBatch) {
      complain("max-num-seqs", std::to_string(seqs), fmt::format("1 to {}", kMostInBatch));
      seqs = kMostInBatch;
    }
    out_.chunked_prefill = line().boolean("enable-chunked-prefill").value_or(true);
    if (!given_tokens) {
      if (!out_.chunked_prefill) {
        tokens = std::max(tokens, out_.max_model_len.count());
      }
      if (out_.rules.batch_tokens_capped_by_seqs) {
        tokens = std::min(tokens, detail::checked_mul(std::max<std::int64_t>(seqs, 1),
                                                      out_.max_model_len.count()));
      }
      if (out_.rules.dispatch_holds_batch && has_batched_experts(out_)) {
        tokens = kBatchedExpertTokens;
      }
    } else {
      tokens = *given_tokens;
    }
    if (!given_seqs) {
      seqs = std::min(seqs, tokens);
    }
    check_batch_limits(tokens, seqs);
    out_.max_num_batched_tokens = Tokens{tokens};
    out_.max_num_seqs = seqs;
  }

  void check_batch_limits(std::int64_t tokens, std::int64_t seqs) {
    if (tokens < 1 || tokens > kMostInBatch) {
      complain("max-num-batched-tokens", std::to_string(tokens),
               fmt::format("1 to {}", kMostInBatch));
    }
    if (seqs < 1) {
      complain("max-num-seqs", std::to_string(seqs), fmt::format("1 to {}", kMostInBatch));
    }
    if (!out_.chunked_prefill && tokens < out_.max_model_len.count()) {
      complain("max-num-batched-tokens", std::to_string(tokens),
               fmt::format("at least max-model-len {} without chunked prefill",
                           out_.max_model_len.count()));
    }
    if (tokens < seqs) {
      complain("max-num-batched-tokens", std::to_string(tokens),
               fmt::format("at least max-num-seqs {}", seqs));
    }
  }

  void features() {
    out_.gpu_memory_utilization = line().number("gpu-memory-utilization").value_or(0.9);
    if (!(out_.gpu_memory_utilization > 0) || out_.gpu_memory_utilization > 1) {
      complain("gpu-memory-utilization", fmt::format("{}", out_.gpu_memory_utilization),
               "above 0 and at most 1");
    }
    if (const auto bytes = line().integer("kv-cache-memory-bytes")) {
      constexpr Bytes kMost{std::int64_t{1} << 50};
      if (*bytes < 1 || Bytes{*bytes} > kMost) {
        complain("kv-cache-memory-bytes", std::to_string(*bytes),
                 fmt::format("1 to {} bytes", kMost.count()));
      } else {
        out_.kv_cache_memory = Bytes{*bytes};
      }
    }
    if (const auto blocks = line().integer("num-gpu-blocks-override")) {
      constexpr std::int64_t kMost = std::int64_t{1} << 26;
      if (*blocks < 1 || *blocks > kMost) {
        complain("num-gpu-blocks-override", std::to_string(*blocks), fmt::format("1 to {}", kMost));
      } else {
        out_.block_override = blocks;
      }
    }
    out_.prefix_caching = line()
                              .boolean("enable-prefix-caching")
                              .value_or(!keeps_states() || out_.rules.recurrent_prefix_caching);
    out_.policy = line().text("scheduling-policy").value_or("fcfs") == "priority"
                      ? SchedulerConfig::Policy::kPriority
                      : SchedulerConfig::Policy::kFcfs;
    const bool async_default = out_.rules.async_by_default &&
                               !(out_.pp > 1 && !line().at_least(0, 15)) &&
                               (!out_.speculation || out_.speculation->works_ahead());
    out_.async_scheduling = line().boolean("async-scheduling").value_or(async_default);
    out_.attention_backend = backend();
    out_.block_size = Tokens{line().integer("block-size").value_or(default_block_size())};
    constexpr std::int64_t kKernelBlock = 16;
    if (out_.block_size.count() < 1 || out_.block_size.count() > 4096 ||
        out_.block_size.count() % kKernelBlock != 0) {
      complain("block-size", std::to_string(out_.block_size.count()),
               "a multiple of 16 up to 4096, as attention kernels take");
    }
    out_.runner_v2 = runs_on_v2();
    if (keeps_states()) {
      recurrent_states();
    }
  }

  // Compressed attention keeps its states in windows.
  [[nodiscard]] bool keeps_states() const {
    return models::has_recurrent_state(model()) && !packs_kv(model());
  }

  // Blocks grow until a page of attention holds a state (facts: vLLM 4.4).
  void recurrent_states() {
    state_cache();
    const auto dtype_of = [this](const char* flag) -> std::optional<DType> {
      const std::string text = line().text(flag).value_or("auto");
      const auto parsed = models::parse_dtype(text);
      if (text != "auto" && !parsed) {
        complain(flag, text, "auto, float16, bfloat16 or float32");
      }
      return parsed;
    };
    out_.state_dtype = dtype_of("mamba-cache-dtype").value_or(out_.dtype);
    out_.recurrent_dtype = dtype_of("mamba-ssm-cache-dtype");
    Bytes token;  // largest attention page of one token
    Bytes state;
    bool mla = false;
    for (int stage = 0; stage < out_.pp && problems_.empty(); ++stage) {
      for (const models::KvLayerSpec& layer : out_.kv_layers(stage)) {
        mla |= layer.kind == AttentionKind::kMla;
        token = std::max(token, out_.kv_token_bytes(layer));
        state = std::max(state, out_.state_bytes(layer));
      }
    }
    if (token > Bytes{0}) {
      const std::int64_t kernel = kernel_block(mla);
      out_.block_size = std::max(out_.block_size, Tokens{kernel * div_ceil(state, token * kernel)});
    }
    out_.state_block = out_.state_cache == StateCache::kLast ? out_.max_model_len : out_.block_size;
    if (const auto given = line().integer("mamba-block-size")) {
      out_.state_block = Tokens{*given};
    }
  }

  // Tokens that a block of a model with states is a multiple of.
  [[nodiscard]] std::int64_t kernel_block(bool mla) const {
    if (out_.attention_backend == "CUTLASS_MLA") {
      return 128;
    }
    const bool current = out_.rules.state_kernel_block_is_current;
    std::int64_t block = mla ? (current ? 128 : 64) : 16;
    if (current) {
      block = std::max(block, out_.block_size.count());
    }
    const std::int64_t checkpoint = out_.rules.delta_net_alignment;
    return checkpoint > 0 && out_.state_cache == StateCache::kAligned && out_.flashinfer_delta_net()
               ? std::lcm(block, checkpoint)
               : block;
  }

  void state_cache() {
    const bool mamba = !models::any_attention(model(), [](const models::AttentionSpec& attention) {
      return models::has_state(attention.kind) && attention.kind != AttentionKind::kMamba1 &&
             attention.kind != AttentionKind::kMamba2;
    });
    const std::string asked = line().text("mamba-cache-mode").value_or("none");
    if (asked == "all" ||
        (asked == "none" && out_.prefix_caching && mamba && out_.rules.keeps_every_state)) {
      out_.state_cache = StateCache::kEvery;
    } else if (asked == "align" || out_.prefix_caching) {
      out_.state_cache = StateCache::kAligned;
    }
  }

  // First backend of the card's generation that takes the model (facts: vLLM 1.4), unless given.
  std::string backend() {
    const auto given = line().text("attention-backend");
    if (given) {
      return *given;
    }
    if (const Json* nested = line().json("attention-config", "backend");
        nested != nullptr && nested->is_string()) {
      return nested->get<std::string>();
    }
    const auto variable = line().variable("VLLM_ATTENTION_BACKEND");
    if (variable && !line().at_least(0, 14)) {
      return *variable;
    }
    const bool mla = models::has_attention(model(), AttentionKind::kMla);
    const int major = out_.gpu.compute_major;
    std::int64_t widest = 0;
    for (const models::LayerSpec& layer : model().layer_kinds) {
      widest = std::max(widest, layer.attention.head_dim);
    }
    if (packs_kv(model())) {
      return "FLASHMLA_SPARSE_DSV4";
    }
    if (out_.expands_latents()) {
      return "FLASH_ATTN";
    }
    if (mla && has_indexer(model())) {
      return sparse_mla_backend(out_);
    }
    if (mla && major == 9 && out_.kv_dtype == DType::kFloat8) {
      return "FLASHMLA";
    }
    if (mla) {
      return major == 10 ? "FLASHINFER_MLA" : major == 9 ? "FLASH_ATTN_MLA" : "TRITON_MLA";
    }
    if (major < 8) {
      return "FLASHINFER";
    }
    constexpr std::int64_t kWidestFlashHead = 256;
    if (out_.dtype == DType::kFloat32 || widest > kWidestFlashHead) {
      return "TRITON_ATTN";
    }
    if (major == 10 || (out_.kv_dtype == DType::kFloat8 && major != 9)) {
      return "FLASHINFER";
    }
    return "FLASH_ATTN";
  }

  std::int64_t default_block_size() const {
    if (packs_kv(model())) {
      return 256;
    }
    if (out_.attention_backend.rfind("FLASHMLA", 0) == 0 || has_indexer(model())) {
      return 64;
    }
    if (out_.attention_backend == "CUTLASS_MLA") {
      return 128;
    }
    return out_.attention_backend == "FLASHINFER_MLA" ? 32 : 16;
  }

  // What sends a launch back to the first runner (vllm/config/vllm.py,
  // _get_v2_model_runner_unsupported_features of 0.26, 0.29 and 0.33).
  bool first_runner_alone_can() const {
    const auto& drafts = out_.speculation;
    if (drafts && drafts->name == "suffix") {
      return true;
    }
    if (line().at_least(0, 30)) {
      return false;
    }
    const bool draft_alone = drafts && drafts->method != SpecDecode::Method::kEagle;
    const bool eagle3_stages = drafts && drafts->name == "eagle3" && out_.pp > 1;
    return draft_alone || eagle3_stages || line().on("enable-dbo");
  }

  bool runs_on_v2() const {
    if (const auto variable = line().variable("VLLM_USE_V2_MODEL_RUNNER")) {
      return *variable == "1";
    }
    if (first_runner_alone_can()) {
      return false;
    }
    const bool dense = !models::has_experts(model()) && !keeps_states();
    const bool listed = models::named(out_.rules.runner_v2_architectures, model());
    switch (out_.rules.runner_v2) {
      case RunnerV2::kNever:
        return false;
      case RunnerV2::kDense:
        return dense && listed && !model().quantization;
      case RunnerV2::kListed:
        return listed;
      case RunnerV2::kDenseOrListed:
        return dense || listed;
      case RunnerV2::kAlways:
        return true;
    }
    return false;
  }

  void graphs() {
    out_.enforce_eager = line().on("enforce-eager");
    const std::int64_t level = line().integer("optimization-level").value_or(2);
    CudagraphMode mode = CudagraphMode::kFullAndPiecewise;
    if (level == 0) {
      mode = CudagraphMode::kNone;
    } else if (level == 1) {
      mode = CudagraphMode::kPiecewise;
    }
    if (const Json* asked = line().json("compilation-config", "cudagraph_mode")) {
      mode = parsed_mode(*asked, mode);
    }
    if (out_.enforce_eager) {
      mode = CudagraphMode::kNone;
    }
    out_.cudagraph_mode = mode;
    if (mode != CudagraphMode::kNone) {
      out_.capture_sizes = capture_sizes();
    }
    const auto switch_on = line().variable("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS");
    const bool by_default =
        out_.runner_v2 ? out_.rules.graph_estimate_v2 : out_.rules.graph_estimate_v1;
    out_.graph_estimate_applied = out_.rules.graph_estimate_possible &&
                                  mode != CudagraphMode::kNone &&
                                  (switch_on ? *switch_on == "1" : by_default);
  }

  CudagraphMode parsed_mode(const Json& asked, CudagraphMode fallback) {
    const std::string text = asked.is_string()
                                 ? boost::algorithm::to_lower_copy(asked.get<std::string>())
                                 : asked.dump();
    for (const CudagraphMode mode :
         {CudagraphMode::kNone, CudagraphMode::kPiecewise, CudagraphMode::kFull,
          CudagraphMode::kFullDecodeOnly, CudagraphMode::kFullAndPiecewise}) {
      if (text == boost::algorithm::to_lower_copy(std::string(name_of(mode)))) {
        return mode;
      }
    }
    complain("compilation-config.cudagraph_mode", text,
             "NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE");
    return fallback;
  }

  std::vector<std::int64_t> capture_sizes() {
    const std::int64_t batch = out_.max_num_batched_tokens.count();
    std::set<std::int64_t> sizes;
    if (const auto given = given_capture_sizes()) {
      for (const std::int64_t size : *given) {
        if (size < 1) {
          complain("cudagraph-capture-sizes", std::to_string(size), "positive sizes");
        } else if (size <= batch) {
          sizes.insert(size);
        }
      }
      return {sizes.begin(), sizes.end()};
    }
    std::int64_t limit =
        out_.gpu.compute_major == 10 ? out_.rules.capture_limit_blackwell : std::int64_t{512};
    limit = std::min(limit, detail::checked_mul(out_.max_num_seqs, 2 * out_.decode_tokens()));
    if (model().architecture == "GptOssForCausalLM") {
      constexpr std::int64_t kModelsOwnLimit = 1024;  // its class sets the list
      limit = kModelsOwnLimit;
    }
    if (const auto given = line().integer("max-cudagraph-capture-size")) {
      limit = *given;
    } else if (const Json* nested =
                   line().json("compilation-config", "max_cudagraph_capture_size")) {
      if (nested->is_number_integer()) {
        limit = nested->get<std::int64_t>();
      } else {
        complain("compilation-config.max_cudagraph_capture_size", nested->dump(), "an integer");
      }
    }
    if (const auto older = line().integers("cuda-graph-sizes"); older && older->size() == 1) {
      limit = older->front();
    }
    if (limit < 0) {
      complain("max-cudagraph-capture-size", std::to_string(limit), "at least 0");
    }
    limit = std::min(limit, batch);
    for (const std::int64_t size : {1, 2, 4}) {
      if (size <= limit) {
        sizes.insert(size);
      }
    }
    if (line().text("performance-mode").value_or("") == "interactivity") {
      constexpr std::int64_t kEverySizeUpTo = 32;
      for (std::int64_t size = 1; size <= std::min(limit, kEverySizeUpTo); ++size) {
        sizes.insert(size);
      }
    }
    for (std::int64_t size = 8; size <= std::min<std::int64_t>(limit, 255); size += 8) {
      sizes.insert(size);
    }
    for (std::int64_t size = 256; size <= limit; size += out_.rules.capture_step_from_256) {
      sizes.insert(size);
    }
    if (out_.rules.capture_adds_batch_tokens && batch <= limit) {
      sizes.insert(batch);
    }
    if (out_.rules.capture_adds_decode_sizes && out_.max_num_seqs <= limit) {
      sizes.insert(out_.max_num_seqs);
    }
    return {sizes.begin(), sizes.end()};
  }

  std::optional<std::vector<std::int64_t>> given_capture_sizes() {
    if (const auto sizes = line().integers("cudagraph-capture-sizes")) {
      return sizes;
    }
    // The older flag: several values are the sizes, one is the largest of the usual list.
    if (const auto sizes = line().integers("cuda-graph-sizes"); sizes && sizes->size() > 1) {
      return sizes;
    }
    const Json* nested = line().json("compilation-config", "cudagraph_capture_sizes");
    if (nested == nullptr) {
      return std::nullopt;
    }
    std::vector<std::int64_t> sizes;
    for (const Json& size : nested->is_array() ? *nested : Json::array({Json()})) {
      if (!size.is_number_integer()) {
        complain("compilation-config.cudagraph_capture_sizes", nested->dump(),
                 "a list of integers");
        return std::nullopt;
      }
      sizes.push_back(size.get<std::int64_t>());
    }
    return sizes;
  }

  void warn_of_unrecorded_kernels() {
    constexpr int kHopper = 9;
    const bool asked = line().text("moe-backend").value_or("auto") != "auto";
    if (models::has_experts(model()) && (out_.gpu.compute_major != kHopper || asked)) {
      out_.warnings.emplace_back(
          "mixture of experts: starts were recorded with the default kernels on Hopper; workspaces "
          "of others follow their source");
    }
  }
};

}  // namespace

std::string_view name_of(CudagraphMode mode) {
  switch (mode) {
    case CudagraphMode::kNone:
      return "NONE";
    case CudagraphMode::kPiecewise:
      return "PIECEWISE";
    case CudagraphMode::kFull:
      return "FULL";
    case CudagraphMode::kFullDecodeOnly:
      return "FULL_DECODE_ONLY";
    case CudagraphMode::kFullAndPiecewise:
      return "FULL_AND_PIECEWISE";
  }
  return "";
}

// Towers are left out where the user rules out every modality.
bool Deployment::loads_towers() const {
  if (launch.on("language-model-only")) {
    return false;
  }
  const Json* limits = launch.json("limit-mm-per-prompt");
  if (limits == nullptr || !limits->is_object() || limits->empty()) {
    return true;
  }
  return std::any_of(limits->begin(), limits->end(),
                     [](const Json& limit) { return limit != Json(0); });
}

bool Deployment::whole_tower(models::Component component) const {
  const bool audio = component == models::Component::kAudio;
  return models::named(audio ? rules.whole_audio : rules.whole_vision, *model) ||
         (!audio && shares_images());
}

// --enable-multimodal-encoder-data-parallel is the older form.
bool Deployment::shares_images() const {
  return (launch.text("mm-encoder-tp-mode").value_or("weights") == "data" ||
          launch.on("enable-multimodal-encoder-data-parallel")) &&
         models::named(rules.encoder_data_parallel, *model);
}

bool Deployment::expands_latents() const {
  return model->family == "minicpm3" || launch.variable("VLLM_MLA_DISABLE").value_or("0") == "1";
}

bool Deployment::checkpoints_prefills() const {
  const bool delta_net = rules.prefill_checkpoints == PrefillCheckpoints::kMamba2AndDeltaNet;
  const bool mamba2 = rules.prefill_checkpoints != PrefillCheckpoints::kNone;
  return state_cache == StateCache::kAligned &&
         ((delta_net && flashinfer_delta_net()) ||
          (mamba2 && models::has_attention(*model, AttentionKind::kMamba2)));
}

bool Deployment::flashinfer_delta_net() const {
  const bool delta_net = models::has_attention(*model, AttentionKind::kGatedDeltaNet);
  const Json* nested = launch.json("additional-config", "gdn_prefill_backend");
  const std::string asked =
      launch.text("gdn-prefill-backend")
          .value_or(nested != nullptr && nested->is_string() ? nested->get<std::string>() : "");
  return delta_net && gpu.compute_major == 9 && (asked.empty() || asked == "flashinfer");
}

std::int64_t Deployment::decode_tokens() const {
  return 1 + (speculation ? speculation->tokens : 0);
}

double Deployment::acceptance() const {
  constexpr double kUsual = 0.7;
  return assumed.spec_acceptance.value_or(kUsual);
}

models::ShardPlan Deployment::shard(int stage) const {
  models::ShardPlan plan;
  plan.tp = tp;
  plan.pp = pp;
  plan.pp_rank = stage;
  plan.ep = ep;
  plan.expert_tp = tp * dp;
  plan.redundant_experts = redundant_experts;
  // Sequence-parallel experts: each rank of the tensor group sends its part of the tokens.
  plan.whole_shared_experts = exchanges_tokens();
  plan.dtype = dtype;
  plan.interleaved_rope_factor = rules.interleaved_rope_factor;
  plan.towers = loads_towers();
  plan.whole_vision = whole_tower(models::Component::kVision);
  plan.whole_audio = whole_tower(models::Component::kAudio);
  plan.unused_kv = rules.unused_kv;
  plan.step_tokens = max_num_batched_tokens.count();
  plan.compute_major = gpu.compute_major;
  constexpr Version kConvertsAwq{0, 19, 0};
  plan.converts_awq =
      launch.version >= kConvertsAwq && model->quantization && model->quantization->method == "awq";
  constexpr Version kConvertsInPlace{0, 33, 0};
  plan.converts_awq_in_place = launch.version >= kConvertsInPlace;
  plan.repacks_fp4 = repacks_fp4(*this);
  constexpr Version kMakesTiedHead{0, 28, 0};
  plan.makes_tied_head = launch.version >= kMakesTiedHead;
  plan.flashinfer_ropes = rules.flashinfer_ropes && enforce_eager;
  plan.indexer.own_rope = rules.indexer_rope;
  plan.indexer.key_in_16_bits = rules.indexer_key_in_16_bits;
  if (rules.indexer_keeps_places) {
    // get_sparse_mla_index_group_max_rows, and one row more.
    plan.indexer.choice_rows =
        std::min(max_num_batched_tokens.count(), max_num_seqs * decode_tokens()) + 1;
  }
  if (speculation) {
    plan.draft = speculation->own_layers;
    plan.draft_tokens = speculation->tokens;
  }
  plan.fp4_experts = fp4_experts(*this);
  plan.host_weights = Bytes{static_cast<std::int64_t>(
      std::min(launch.number("cpu-offload-gb").value_or(0.0), kMostHostGib) *
      static_cast<double>(kGiB.count()))};
  if (launch.on("enable-lora")) {
    models::LoraSlots lora;
    lora.slots = launch.integer("max-loras").value_or(1);
    lora.rank = launch.integer("max-lora-rank").value_or(16);
    lora.dtype = models::parse_dtype(launch.text("lora-dtype").value_or("auto")).value_or(dtype);
    lora.fully_sharded = launch.on("fully-sharded-loras");
    lora.embeddings = adapts_embeddings(model->family, launch.version);
    lora.tied_embedding_twice = adapts_tied_embedding_twice(model->family, launch.version);
    plan.lora = lora;
  }
  plan.transformers_backend =
      models::uses_transformers_backend(model->architecture, launch.version);
  if (!model->quantization) {
    plan.online_quantization = launch.text("quantization").value_or("");
  }
  return plan;
}

std::vector<std::int64_t> Deployment::full_capture_sizes() const {
  std::vector<std::int64_t> sizes;
  if (has_full(cudagraph_mode)) {
    std::copy_if(capture_sizes.begin(), capture_sizes.end(), std::back_inserter(sizes),
                 [this](std::int64_t size) { return size <= max_num_seqs; });
  }
  if (micro_batches > 1) {
    const std::int64_t least = launch.integer("dbo-decode-token-threshold").value_or(32);
    std::vector<std::int64_t> split;
    std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(split),
                 [least](std::int64_t size) { return size >= least; });
    sizes.insert(sizes.end(), split.begin(), split.end());
  }
  return sizes;
}

OrderedJson Deployment::resolved() const {
  OrderedJson out;
  out["model_runner"] = runner_v2 ? "v2" : "v1";
  out["attention_backend"] = attention_backend;
  if (dcp > 1) {
    out["decode_context_parallel_size"] = dcp;
  }
  if (speculation) {
    out["speculation"] = {{"method", speculation->name},
                          {"num_speculative_tokens", speculation->tokens},
                          {"acceptance", acceptance()}};
  }
  out["gpu_memory_utilization"] = gpu_memory_utilization;
  out["max_num_seqs"] = max_num_seqs;
  out["max_num_batched_tokens"] = max_num_batched_tokens.count();
  out["block_size"] = block_size.count();
  out["prefix_caching"] = prefix_caching;
  out["chunked_prefill"] = chunked_prefill;
  out["async_scheduling"] = async_scheduling;
  out["scheduling_policy"] = policy == SchedulerConfig::Policy::kPriority ? "priority" : "fcfs";
  out["cudagraph_mode"] = name_of(cudagraph_mode);
  out["cudagraph_capture_sizes"] = capture_sizes;
  return out;
}

std::vector<Knob> Deployment::knobs() const {
  using Kind = Knob::Kind;
  std::vector<Knob> out = {
      {Kind::kLonger, "max-model-len", static_cast<double>(max_model_len.count())},
      {Kind::kFraction, "gpu-memory-utilization", gpu_memory_utilization},
      {Kind::kLess, "max-num-seqs", static_cast<double>(max_num_seqs)},
      {Kind::kLess, "max-num-batched-tokens", static_cast<double>(max_num_batched_tokens.count()),
       static_cast<double>(max_num_seqs)},
  };
  if (!enforce_eager) {
    out.push_back({Kind::kSwitch, "enforce-eager"});
  }
  add_float8_knob(*this, "fp8", out);
  out.push_back({Kind::kCards, "tensor-parallel-size", static_cast<double>(tp)});
  return out;
}

Deployment resolve(launch::Launch launch, const std::shared_ptr<const models::ModelSpec>& model,
                   const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed) {
  return Resolver(std::move(launch), model, gpu, card, assumed).run();
}

}  // namespace oomcast::vllm
