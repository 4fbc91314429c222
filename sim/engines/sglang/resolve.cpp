// From a launch line to a deployment, step by step in SGLang's order: automatic settings first,
// from what the user gave; then model, attention and page size, which do not change them any more.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/resolver.hpp"
#include "sim/engines/sglang/auto_settings.hpp"
#include "sim/engines/sglang/compressed_pools.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/expert_parallel.hpp"
#include "sim/engines/sglang/host_pool.hpp"

namespace oomcast::sglang {
namespace {

using models::AttentionKind;
using models::DType;
using models::FfnKind;

constexpr std::int64_t kMostInBatch = std::int64_t{1} << 24;   // tokens or requests of one step
constexpr std::int64_t kMostCaptured = std::int64_t{1} << 16;  // tokens or requests of one graph
constexpr std::int64_t kLongest = std::int64_t{1} << 31;
constexpr std::int64_t kCopiedBeside = 256;  // routed experts of DeepSeek V3 and R1

class Resolver : private LaunchResolver<Deployment> {
 public:
  Resolver(launch::Launch&& launch, const std::shared_ptr<const models::ModelSpec>& model,
           const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed)
      : LaunchResolver(startup_rules_for(launch.version), std::move(launch), model, gpu, card,
                       assumed) {}

  Deployment run() {
    refuse_what_is_not_modelled();
    refuse_other_implementations();
    roles();
    parallelism();
    speculation();
    limits();
    automatic();
    multimodal();
    dtypes();
    context_length();
    attention();
    pools();
    attention_groups();
    graphs();
    settle_expert_exchange(out_, problems_);
    block_quantisation();
    check_host_tier(out_, problems_);
    torch_settings();
    measured_values();
    notes();
    problems_.raise_if_any();
    return std::move(out_);
  }

 private:
  const StartupRules& rules() const { return out_.rules; }

  void refuse_other_implementations() {
    if (line().text("model-impl").value_or("auto") == "transformers") {
      complain("model-impl", "transformers", "SGLang's own model code",
               "models through Transformers are not modelled yet");
    }
  }

  void roles() {
    const std::string mode = line().text("disaggregation-mode").value_or("null");
    out_.role = mode == "prefill"  ? Role::kPrefill
                : mode == "decode" ? Role::kDecode
                                   : Role::kMixed;
  }

  void parallelism() {
    out_.tp = parallel("tensor-parallel-size");
    out_.pp = parallel("pipeline-parallel-size");
    out_.dp = parallel("data-parallel-size");
    if (line().given("attn-dp-size")) {
      out_.attention_dp = parallel("attn-dp-size");
    } else if (line().on("enable-dp-attention")) {
      out_.attention_dp = out_.dp;
      out_.dp = 1;
    }
    if (out_.tp % out_.attention_dp != 0) {
      complain("data-parallel-size", std::to_string(out_.attention_dp),
               fmt::format("a divisor of the {} tensor-parallel ranks", out_.tp),
               "with --enable-dp-attention");
      out_.attention_dp = 1;
    }
    experts();
    try {
      models::check_sharding(model(), out_.shard(0));
    } catch (const ConfigError& error) {
      problems_.take(error);
    }
  }

  [[nodiscard]] bool deepep() const { return dispatch_backend(out_) == "deepep"; }

  void experts() {
    if (!models::has_experts(model())) {
      return;
    }
    out_.ep = parallel("expert-parallel-size");
    if (dispatch_backend(out_) != "none" || line().on("enable-ep-moe")) {
      out_.ep = out_.tp;
    }
    if (line().integer("moe-dense-tp-size")) {
      out_.dense_tp = parallel("moe-dense-tp-size");
    }
    const bool copied =
        rules().shared_expert_copies && out_.gpu.compute_major >= 9 && !deepep() &&
        model().architecture == "DeepseekV3ForCausalLM" &&
        std::any_of(model().layer_kinds.begin(), model().layer_kinds.end(),
                    [](const auto& layer) { return layer.ffn.experts == kCopiedBeside; });
    out_.shared_expert_copies = copied ? out_.tp : 1;
    out_.redundant_experts =
        static_cast<int>(bounded("ep-num-redundant-experts", 1 << 16).value_or(0));
    if (out_.ep != 1 && out_.ep != out_.tp) {
      complain("expert-parallel-size", std::to_string(out_.ep),
               fmt::format("1 or the {} tensor-parallel ranks", out_.tp),
               "experts divided over some ranks only are not modelled yet");
      out_.ep = 1;
    }
    out_.expert_backend = line().text("moe-runner-backend").value_or("auto");
  }

  void speculation() {
    const auto algorithm = line().text("speculative-algorithm");
    if (!algorithm) {
      return;
    }
    Speculation spec;
    spec.algorithm = *algorithm;
    const bool llama = model().family == "llama";
    spec.steps = line().integer("speculative-num-steps").value_or(llama ? 5 : 3);
    spec.topk = line().integer("speculative-eagle-topk").value_or(llama ? 4 : 1);
    spec.draft_tokens = line().integer("speculative-num-draft-tokens").value_or(llama ? 8 : 4);
    if (*algorithm == "STANDALONE" && !line().given("speculative-num-steps")) {
      spec.steps = 3;
      spec.topk = 1;
      spec.draft_tokens = 4;
    }
    if (spec.topk == 1 && *algorithm != "NGRAM") {
      spec.draft_tokens = spec.steps + 1;
    }
    constexpr std::int64_t kMost = 4096;
    for (const auto& [flag, value] :
         {std::pair{"speculative-num-steps", spec.steps},
          std::pair{"speculative-eagle-topk", spec.topk},
          std::pair{"speculative-num-draft-tokens", spec.draft_tokens}}) {
      if (value > kMost) {
        complain(flag, std::to_string(value), fmt::format("at most {}", kMost));
      }
    }
    spec.own_layers = *algorithm == "NEXTN" ||
                      (*algorithm == "EAGLE" && !line().given("speculative-draft-model-path"));
    if (*algorithm != "NGRAM" && !spec.own_layers) {
      out_.warnings.emplace_back(
          "the draft model's weights and KV are not modelled: its config is not known here");
    }
    out_.speculation = spec;
  }

  std::optional<std::int64_t> bounded(const char* flag, std::int64_t most) {
    const auto value = line().integer(flag);
    if (value && *value > most) {
      complain(flag, std::to_string(*value), fmt::format("at most {}", most));
      return most;
    }
    return value;
  }

  void limits() {
    out_.max_running = bounded("max-running-requests", kMostInBatch);
    if (!out_.max_running && has_compressed(model())) {
      constexpr std::int64_t kCompressedRequests = 256;
      out_.max_running = kCompressedRequests;
    } else if (!out_.max_running && out_.speculation) {
      out_.max_running = rules().speculative_requests;
    }
    out_.max_prefill_tokens = Tokens{bounded("max-prefill-tokens", kMostInBatch).value_or(16384)};
    if (const auto most = bounded("max-total-tokens", std::int64_t{1} << 40)) {
      out_.max_total_tokens = Tokens{*most};
    }
    out_.dummy_weights = line().text("load-format").value_or("auto") == "dummy";
    out_.custom_all_reduce = !line().on("disable-custom-all-reduce");
    out_.radix_cache = !line().on("disable-radix-cache");
    out_.overlap = !line().on("disable-overlap-schedule");
    out_.flashinfer_sampling =
        line().text("sampling-backend").value_or("flashinfer") == "flashinfer";
  }

  // The largest size that a list of the user names, or the flag itself.
  std::optional<std::int64_t> largest(std::initializer_list<const char*> lists,
                                      std::initializer_list<const char*> flags) {
    for (const char* flag : lists) {
      if (const auto sizes = line().integers(flag); sizes && !sizes->empty()) {
        return std::clamp<std::int64_t>(*std::max_element(sizes->begin(), sizes->end()), 1,
                                        kMostCaptured);
      }
    }
    for (const char* flag : flags) {
      if (line().given(flag)) {
        return bounded(flag, kMostCaptured);
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] bool decode_graphs_wanted() const {
    return !line().on("disable-cuda-graph") && !line().on("disable-decode-cuda-graph") &&
           line().text("cuda-graph-backend-decode").value_or("full") != "disabled";
  }

  [[nodiscard]] bool prefill_graphs_wanted() const {
    if (line().on("disable-cuda-graph") || line().on("disable-prefill-cuda-graph") ||
        line().on("disable-piecewise-cuda-graph") ||
        line().text("cuda-graph-backend-prefill").value_or("") == "disabled") {
      return false;
    }
    if (line().given("cuda-graph-backend-prefill") || line().on("enforce-piecewise-cuda-graph")) {
      return true;
    }
    switch (rules().prefill_graphs) {
      case PrefillGraphs::kOnRequest:
        return line().on("enable-piecewise-cuda-graph");
      case PrefillGraphs::kPiecewise:
        return prefill_graphs_suit_the_model() && !refuses_piecewise();
      case PrefillGraphs::kBreakable:
        return prefill_graphs_suit_the_model();
    }
    return false;
  }

  // Known before the reserve is computed.
  [[nodiscard]] bool prefill_graphs_suit_the_model() const {
    const bool exchanges = dispatch_backend(out_) != "none" || out_.attention_dp > 1;
    return out_.pp == 1 && !line().on("enable-two-batch-overlap") &&
           (!exchanges || rules().prefill_graphs_exchange) &&
           (!has_mla(model()) || rules().prefill_graphs_mla) &&
           !models::named(rules().prefill_graphs_refused, model()) &&
           (!multimodal_model() || models::named(rules().prefill_graphs_multimodal, model()));
  }

  [[nodiscard]] bool refuses_piecewise() const {
    return out_.role != Role::kMixed || line().on("enable-torch-compile") ||
           line().on("enable-hierarchical-cache") || line().on("enable-deterministic-inference") ||
           line().on("enable-symm-mem") || line().on("enable-eplb");
  }

  void automatic() {
    AutoInput input;
    input.card_mib = out_.gpu.nvml_total / kMiB;
    input.tp = out_.tp;
    input.pp = out_.pp;
    input.attention_dp = out_.attention_dp;
    input.role = out_.role;
    input.chunk = bounded("chunked-prefill-size", kMostInBatch);
    input.decode_max = largest({"cuda-graph-bs", "cuda-graph-bs-decode"},
                               {"cuda-graph-max-bs-decode", "cuda-graph-max-bs"});
    input.prefill_max = largest({"cuda-graph-bs-prefill", "piecewise-cuda-graph-tokens"},
                                {"cuda-graph-max-bs-prefill", "piecewise-cuda-graph-max-tokens"});
    for (const PrefillMost& row : rules().prefill_most) {
      if (!input.prefill_max && models::named(row.architectures, model())) {
        input.prefill_max = row.tokens;
      }
    }
    input.max_running = line().integer("max-running-requests");
    input.max_prefill_tokens = out_.max_prefill_tokens.count();
    input.draft_tokens = out_.speculation ? out_.speculation->draft_tokens : 1;
    input.decode_graphs = decode_graphs_wanted();
    input.prefill_graphs = prefill_graphs_wanted();
    input.speculative = out_.speculation.has_value() && out_.speculation->algorithm != "NGRAM";
    input.standalone_draft =
        out_.speculation.has_value() && out_.speculation->algorithm == "STANDALONE";
    input.mla = has_mla(model());
    input.deepep = deepep();
    automatic_ = auto_settings(rules(), input);
    out_.chunk = automatic_.chunk;
    const std::optional<double> fraction = line().number("mem-fraction-static");
    // SGLang's own may be below 0, which leaves no room for the cache.
    out_.mem_fraction = fraction.value_or(automatic_.mem_fraction);
    if (fraction && (!(*fraction > 0) || *fraction > 1)) {
      complain("mem-fraction-static", fmt::format("{}", out_.mem_fraction),
               "above 0 and at most 1");
    }
  }

  // Some architectures are served as text models unless asked; their encoders are loaded all the
  // same.
  [[nodiscard]] bool multimodal_model() const {
    return !model().towers.empty() && (line().on("enable-multimodal") ||
                                       !models::named(rules().multimodal_when_asked, model()));
  }

  // Width and layers of the vision encoder as its config names them; Qwen's calls the layers depth,
  // which the rule does not read, and Qwen2-VL's hidden_size is the width that its merger puts out.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> encoder_size() const {
    constexpr std::int64_t kUnnamedLayers = 24;
    std::int64_t layers = 0;
    std::int64_t hidden = 1024;
    for (const models::Tower& tower : model().towers) {
      if (tower.component != models::Component::kVision) {
        continue;
      }
      for (const auto& group : tower.groups) {
        if (group.count > layers && !group.tensors.empty()) {
          layers = group.count;
          hidden = narrowest_matrix_width(group.tensors).value_or(hidden);
        }
      }
    }
    if (model().family == "qwen2_vl") {
      hidden = model().hidden;
    }
    const bool depth = model().family.rfind("qwen", 0) == 0;
    return {depth || layers == 0 ? kUnnamedLayers : layers, hidden};
  }

  static std::optional<std::int64_t> narrowest_matrix_width(
      const std::vector<models::TensorSpec>& tensors) {
    for (const models::TensorSpec& tensor : tensors) {
      if (tensor.columns.units * tensor.columns.size > 1) {
        return tensor.columns.units * tensor.columns.size;
      }
    }
    return std::nullopt;
  }

  void multimodal() {
    const bool language = line().on("language-only") || line().on("language-model-only");
    if (!multimodal_model() || language) {
      return;
    }
    out_.mem_fraction *= rules().multimodal_share;
    const bool decode = out_.role == Role::kDecode && rules().disaggregated_activation;
    if (rules().multimodal_factor && !line().given("mem-fraction-static") && !decode) {
      const auto [layers, hidden] = encoder_size();
      out_.mem_fraction *= multimodal_fraction_factor(layers, hidden);
    }
    if (rules().multimodal_reservation && !decode) {
      // Embedding cache, and the feature transport where it is on by itself.
      const auto given = line().variable("SGLANG_VLM_CACHE_SIZE_MB");
      constexpr Bytes kEmbeddings{std::int64_t{100} << 20};
      constexpr Bytes kTransport{std::int64_t{1} << 30};
      const bool transport = model().family.rfind("qwen3_vl", 0) == 0;
      out_.multimodal_reservation = transport ? kTransport : kEmbeddings;
      if (given) {
        out_.warnings.emplace_back("SGLANG_VLM_CACHE_SIZE_MB is not read");
      }
    }
  }

  void dtypes() {
    const std::string asked = line().text("dtype").value_or("auto");
    DType dtype = model().dtype;
    if (asked != "auto") {
      dtype = models::parse_dtype(asked).value_or(dtype);
    } else if (dtype == DType::kFloat32) {
      dtype = DType::kFloat16;
      out_.assumptions.emplace_back("dtype auto: a float32 checkpoint is loaded as float16");
    }
    // Whatever was asked for; older cards are refused (model_executor: "sm75 and above").
    if (out_.gpu.compute_major < 8) {
      if (out_.gpu.compute_major == 7 && out_.gpu.compute_minor < 5) {
        complain("dtype", std::string(models::name_of(dtype)),
                 fmt::format("a card of compute capability 7.5 or above, {} has {}.{}",
                             out_.gpu.name, out_.gpu.compute_major, out_.gpu.compute_minor),
                 "");
      }
      if (dtype != DType::kFloat16) {
        out_.assumptions.emplace_back("dtype: float16 as the card has no bfloat16");
      }
      dtype = DType::kFloat16;
    }
    out_.dtype = dtype;
    out_.kv_dtype = dtype;
    const std::string kv = line().text("kv-cache-dtype").value_or("auto");
    if (kv.rfind("fp8", 0) == 0) {
      out_.kv_dtype = DType::kFloat8;
    } else if (kv == "fp4_e2m1" || kv == "nvfp4") {
      out_.kv_dtype = DType::kFloat4;
    } else if (kv != "auto") {
      const auto parsed = models::parse_dtype(kv);
      if (!parsed) {
        complain("kv-cache-dtype", kv, "auto, bfloat16, an fp8 or an fp4 type",
                 "other KV formats are not modelled yet");
      }
      out_.kv_dtype = parsed.value_or(dtype);
    } else if (has_compressed(model()) || (sparse_latents() && out_.gpu.compute_major >= 10)) {
      out_.kv_dtype = DType::kFloat8;
    } else if (rules().checkpoint_kv_dtype && !sparse_latents() && model().quantization &&
               model().quantization->method.starts_with("modelopt") &&
               model().quantization->kv_cache.starts_with("fp8")) {
      out_.kv_dtype = DType::kFloat8;
      out_.assumptions.emplace_back("kv-cache-dtype auto: the checkpoint asks for fp8");
    }
    const auto state = line().given("mamba-ssm-dtype") ? line().text("mamba-ssm-dtype")
                                                       : line().variable("SGLANG_MAMBA_SSM_DTYPE");
    if (state) {
      out_.state_dtype = models::parse_dtype(*state);
    } else if (const auto set = line().variable("SGLANG_MAMBA_SSM_DTYPE")) {
      out_.state_dtype = models::parse_dtype(*set);
    }
  }

  // SGLang takes the declared length where the scaling names its original length, and Llama 3's.
  [[nodiscard]] Tokens declared_length() const {
    const bool as_declared =
        std::any_of(model().ropes.begin(), model().ropes.end(), [](const models::RopeSpec& rope) {
          return rope.original_max_position > 0 || rope.type == "llama3";
        });
    return as_declared ? model().length.declared : model().length.derived;
  }

  void context_length() {
    const Tokens derived = declared_length();
    const auto given = bounded("context-length", kLongest);
    out_.max_model_len = given ? Tokens{*given} : derived;
    if (!given && model().length.key.empty()) {
      out_.assumptions.push_back(
          fmt::format("context-length {}: the config has no length key", derived.count()));
    }
    const bool may_exceed =
        line().variable("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN").value_or("0") == "1";
    if (given && out_.max_model_len > derived && !may_exceed) {
      complain(
          "context-length", std::to_string(*given),
          fmt::format("at most {}, the length derived from the model's config", derived.count()),
          "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 overrides this");
    }
  }

  // DeepSeek V3.2, GLM 5: an indexer chooses among the latents.
  [[nodiscard]] bool sparse_latents() const {
    return std::any_of(
        model().layer_kinds.begin(), model().layer_kinds.end(),
        [](const models::LayerSpec& layer) { return layer.attention.mla.indexer_heads > 0; });
  }

  [[nodiscard]] std::string default_backend() const {
    const int major = out_.gpu.compute_major;
    const bool plain = !out_.speculation || out_.speculation->topk == 1;
    if (has_compressed(model())) {
      return "dsv4";
    }
    if (sparse_latents()) {
      return "dsa";
    }
    if (has_mla(model())) {
      if (major == 9 && rules().fa3_by_default) {
        return "fa3";
      }
      if (major == 10) {
        return model().architecture == "DeepseekV3ForCausalLM" && rules().trtllm_mla_by_default
                   ? "trtllm_mla"
                   : "flashinfer";
      }
      return "triton";
    }
    std::int64_t widest = 0;
    bool sinks = false;
    for (const models::LayerSpec& layer : model().layer_kinds) {
      widest = std::max(widest, layer.attention.head_dim);
      sinks = sinks || layer.attention.sinks;
    }
    constexpr std::int64_t kWidestHead = 256;
    if (widest > kWidestHead) {
      return "triton";  // FlashAttention and FlashInfer take no wider heads
    }
    if (major == 9 && plain && rules().fa3_by_default) {
      return "fa3";
    }
    if (major == 10 && plain && rules().trtllm_mha_by_default) {
      return "trtllm_mha";
    }
    return sinks ? "triton" : "flashinfer";
  }

  static std::int64_t page_of(const std::string& backend, std::int64_t page) {
    const auto among = [page](std::initializer_list<std::int64_t> allowed) {
      return std::find(allowed.begin(), allowed.end(), page) != allowed.end();
    };
    if (backend == "flashmla" || backend == "hpc_ops") {
      return 64;
    }
    if (backend == "trtllm_mla" || backend == "cutedsl_mla") {
      return among({32, 64}) ? page : 64;
    }
    if (backend == "trtllm_mha") {
      return among({16, 32, 64, 128}) ? page : 64;
    }
    if (backend == "cutlass_mla" || backend == "intel_xpu") {
      return 128;
    }
    return page;
  }

  [[nodiscard]] const AttentionDefault* architecture_default() const {
    const auto& rows = rules().attention_defaults;
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const AttentionDefault& one) {
      return models::named(one.architectures, model()) &&
             one.compute.value_or(out_.gpu.compute_major) == out_.gpu.compute_major &&
             out_.gpu.nvml_total / kMiB >= one.least_mib;
    });
    return row == rows.end() ? nullptr : &*row;
  }

  void attention() {
    std::string backend = line().text("attention-backend").value_or("");
    const AttentionDefault* own = backend.empty() ? architecture_default() : nullptr;
    if (line().on("enable-flashmla")) {
      backend = "flashmla";
    } else if (line().on("enable-flashinfer-mla")) {
      backend = "flashinfer";
    }
    if (backend.empty()) {
      backend = own != nullptr && own->backend ? *own->backend : default_backend();
      const std::string kv = line().text("kv-cache-dtype").value_or("auto");
      if (backend == "fa3" && kv == "fp8_e5m2") {
        backend = "triton";
      }
    }
    out_.prefill_backend = line().text("prefill-attention-backend").value_or(backend);
    out_.decode_backend = line()
                              .text("decode-attention-backend")
                              .value_or(own != nullptr ? own->decode.value_or(backend) : backend);
    std::int64_t page =
        line().integer("page-size").value_or(own != nullptr ? own->page.value_or(1) : 1);
    page = page_of(out_.decode_backend, page_of(out_.prefill_backend, page));
    if (has_compressed(model())) {
      constexpr std::int64_t kCompressedPage = 256;
      page = kCompressedPage;
    } else if (sparse_latents()) {
      constexpr std::int64_t kSparsePage = 64;
      page = kSparsePage;
    }
    constexpr std::int64_t kLargestPage = 4096;
    if (page > kLargestPage) {
      complain("page-size", std::to_string(page), fmt::format("1 to {}", kLargestPage));
      page = 1;
    }
    out_.page_size = Tokens{page};
    if (out_.chunk > 0 && out_.chunk % page != 0 && out_.role != Role::kDecode) {
      complain("chunked-prefill-size", std::to_string(out_.chunk),
               fmt::format("a multiple of the page size {}", page),
               "chunked_prefill_size must be divisible by page_size");
    }
  }

  void pools() {
    const bool windows =
        std::any_of(model().layer_kinds.begin(), model().layer_kinds.end(),
                    [](const auto& layer) { return models::has_window(layer.attention.kind); });
    out_.window_pool = has_compressed(model()) ||
                       (windows && models::named(rules().windowed_architectures, model()) &&
                        !line().on("disable-hybrid-swa-memory"));
    out_.window_ratio = line().given("swa-full-tokens-ratio") || !has_compressed(model())
                            ? line().number("swa-full-tokens-ratio").value_or(0.8)
                            : 0.1;
    out_.state_ratio = line().number("mamba-full-memory-ratio").value_or(0.9);
    out_.state_slots = bounded("max-mamba-cache-size", kMostInBatch);
    if (models::has_recurrent_state(model())) {
      state_strategy();
    }
  }

  // Slots of recurrent state that a request may hold at once.
  void state_strategy() {
    if (!out_.radix_cache) {
      return;
    }
    constexpr std::int64_t kBase = 3;
    const std::string strategy = line().text("mamba-scheduler-strategy").value_or("auto");
    out_.slots_per_request = kBase;
    const bool triton = line().text("linear-attn-backend").value_or("triton") == "triton";
    // Without overlap and pages the states as they are will do.
    const bool worth = out_.overlap || out_.page_size > Tokens{1};
    out_.tracks_states = strategy.rfind("extra_buffer", 0) == 0 ||
                         (strategy == "auto" && rules().extra_state_buffer && triton && worth &&
                          !models::named(rules().untracked_architectures, model()));
    if (out_.tracks_states) {
      out_.slots_per_request += strategy == "extra_buffer_lazy" || !out_.overlap ? 1 : 2;
    } else if (!has_compressed(model())) {
      out_.overlap = false;  // it would run ahead of the state that is published
    }
  }

  // Attention groups take turns: after the fraction is fixed, each prefills its part of a chunk.
  void attention_groups() {
    if (out_.attention_dp > 1 && out_.chunk > 0) {
      out_.chunk = std::max<std::int64_t>(out_.chunk / out_.attention_dp, 1);
      automatic_.prefill_max = std::min(automatic_.prefill_max, out_.chunk);
    }
  }

  std::vector<std::int64_t> given_sizes(std::initializer_list<const char*> flags) {
    for (const char* flag : flags) {
      if (const auto sizes = line().integers(flag); sizes && !sizes->empty()) {
        std::set<std::int64_t> sorted;
        for (const std::int64_t size : *sizes) {
          if (size < 1 || size > kMostCaptured) {
            complain(flag, std::to_string(size), fmt::format("1 to {}", kMostCaptured));
          } else {
            sorted.insert(size);
          }
        }
        return {sorted.begin(), sorted.end()};
      }
    }
    return {};
  }

  void graphs() {
    if (decode_graphs_wanted() && out_.role != Role::kPrefill) {
      out_.decode_sizes = given_sizes({"cuda-graph-bs", "cuda-graph-bs-decode"});
      if (out_.decode_sizes.empty()) {
        out_.decode_sizes = decode_capture_sizes(
            rules().capture_list, {automatic_.decode_max, automatic_.decode_of_card},
            out_.speculation.has_value(), !line().on("disable-cuda-graph-padding"));
      }
    }
    if (prefill_graphs_wanted() && out_.role != Role::kDecode && all_layers_attend() &&
        !models::named(rules().prefill_graphs_unfit, model())) {
      out_.prefill_sizes = given_sizes({"cuda-graph-bs-prefill", "piecewise-cuda-graph-tokens"});
      if (out_.prefill_sizes.empty()) {
        std::int64_t most = automatic_.prefill_max;
        if (out_.max_total_tokens) {
          most = std::min(most, out_.max_total_tokens->count());
        }
        out_.prefill_sizes = prefill_capture_sizes(most);
      }
    }
  }

  // Layers without attention (experts or Mamba alone) end prefill graphs; so does KDA.
  [[nodiscard]] bool all_layers_attend() const {
    return std::all_of(
        model().layer_kind.begin(), model().layer_kind.end(), [this](std::uint16_t kind) {
          const AttentionKind attention = model().layer_kinds[kind].attention.kind;
          return attention != AttentionKind::kNone && attention != AttentionKind::kMamba1 &&
                 attention != AttentionKind::kMamba2 && attention != AttentionKind::kKimiDelta &&
                 attention != AttentionKind::kCompressed;
        });
  }

  // Fp8LinearMethod and Fp8MoEMethod refuse shards that cut a block.
  void block_quantisation() {
    const auto& quantization = model().quantization;
    if (!quantization || quantization->method != "fp8" || quantization->block_rows <= 0) {
      return;
    }
    std::set<std::int64_t> seen;
    for (const models::LayerSpec& layer : model().layer_kinds) {
      if (layer.ffn.kind != FfnKind::kMoe) {
        continue;
      }
      const std::int64_t width = layer.ffn.expert_width / (out_.ep > 1 ? 1 : out_.tp);
      if (width % quantization->block_rows != 0 && seen.insert(width).second) {
        complain("tensor-parallel-size", std::to_string(out_.tp),
                 fmt::format("experts in blocks of {} rows", quantization->block_rows),
                 fmt::format("The output_size of gate's and up's weight = {} is not divisible by "
                             "weight quantization block_n = {}. --ep-size {} keeps experts whole",
                             width, quantization->block_rows, out_.tp));
      }
    }
    delta_net_blocks(*quantization);
  }

  // Gates of delta nets are two matrices in one, which may not cut a block either. SGLang reads
  // names of what stays in 16 bits, not patterns (quantization/utils.py is_layer_skipped).
  // Published checkpoints list names; patterns are how configs written by hand shorten them.
  void delta_net_blocks(const models::Quantization& quantization) {
    const auto is_pattern = [](const std::string& name) {
      return name.starts_with("re:") || name.find('*') != std::string::npos;
    };
    const auto kept = std::find_if(
        quantization.ignore.begin(), quantization.ignore.end(), [&](const std::string& name) {
          return name.find(is_pattern(name) ? "linear_attn" : "linear_attn.in_proj_b") !=
                 std::string::npos;
        });
    for (const models::LayerSpec& layer : model().layer_kinds) {
      if (layer.attention.kind != AttentionKind::kGatedDeltaNet) {
        continue;
      }
      const std::int64_t heads = layer.attention.state.heads / out_.attention_tp();
      if (heads % quantization.block_rows == 0) {
        continue;
      }
      if (kept == quantization.ignore.end()) {
        complain("quantization_config.modules_to_not_convert", "no name of linear_attn.in_proj_ba",
                 "the names of linear_attn.in_proj_ba",
                 fmt::format("Weight output_partition_size = {} is not divisible by weight "
                             "quantization block_n = {}.",
                             heads, quantization.block_rows));
      } else if (is_pattern(*kept)) {
        out_.warnings.push_back(fmt::format(
            "quantization_config.modules_to_not_convert: SGLang reads names, not patterns; {} is "
            "taken for the names it stands for",
            *kept));
      }
      return;
    }
  }

  // PyTorch reads the first of its variables that is set.
  AutoSettings automatic_;
};

}  // namespace

Deployment resolve(launch::Launch launch, const std::shared_ptr<const models::ModelSpec>& model,
                   const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed) {
  return Resolver(std::move(launch), model, gpu, card, assumed).run();
}

}  // namespace oomcast::sglang
