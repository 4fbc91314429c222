#include "sim/engines/trtllm/deployment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sim/core/error.hpp"
#include "sim/engines/resolver.hpp"
#include "sim/engines/trtllm/expert_parallel.hpp"

namespace oomcast::trtllm {
namespace {

using models::DType;

constexpr std::int64_t kMostInBatch = std::int64_t{1} << 24;

// Batches that generation graphs are captured for, ascending (facts: TensorRT-LLM 4).
std::vector<std::int64_t> capture_sizes(std::int64_t most, bool padded) {
  std::set<std::int64_t> sizes;
  if (padded) {
    sizes = {1, 2, 4};
    for (std::int64_t size = 8; size <= 128; size += 8) {
      sizes.insert(size);
    }
    for (std::int64_t size = 192; size <= most; size += 64) {
      sizes.insert(size);
    }
  } else {
    for (std::int64_t size = 1; size < 32; ++size) {
      sizes.insert(size);
    }
    for (std::int64_t size = 32; size <= most; size *= 2) {
      sizes.insert(size);
    }
  }
  sizes.insert(most);
  std::vector<std::int64_t> out;
  std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(out),
               [most](std::int64_t size) { return size <= most; });
  return out;
}

class Resolver : private LaunchResolver<Deployment> {
 public:
  Resolver(launch::Launch&& launch, const std::shared_ptr<const models::ModelSpec>& model,
           const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed)
      : LaunchResolver(startup_rules_for(launch.version), std::move(launch), model, gpu, card,
                       assumed) {}

  Deployment run() {
    refuse_other_ways();
    parallelism();
    dtypes();
    sizes();
    cache();
    graphs();
    torch_settings();
    exchange();
    measured_values();
    notes();
    out_.warnings.emplace_back(
        "TensorRT-LLM: sampler state and the experts' tuning scratch are not documented and not "
        "counted");
    problems_.raise_if_any();
    return std::move(out_);
  }

 private:
  void exchange() {
    try {
      out_.exchange = expert_exchange(out_);
    } catch (const ConfigError& error) {
      problems_.take(error);
    }
  }

  void refuse_other_ways() {
    if (out_.gpu.vendor != "nvidia") {
      problems_.add({"command line", "--gpu", out_.gpu.name, "a card of NVIDIA",
                     "TensorRT-LLM runs on no other"});
    }
    if (const auto file = line().text("extra-llm-api-options")) {
      complain("extra-llm-api-options", *file, "its keys as flags",
               "the file is not read: write kv_cache_config.free_gpu_memory_fraction as "
               "--kv_cache_config.free_gpu_memory_fraction, and so on");
    }
    if (line().integer("cp-size").value_or(1) != 1) {
      complain("cp-size", std::to_string(*line().integer("cp-size")), "1",
               "context parallelism is not modelled yet");
    }
    if (line().text("backend") == std::optional<std::string>("_autodeploy")) {
      complain("backend", "_autodeploy", "pytorch", "AutoDeploy is not modelled");
    }
  }

  void parallelism() {
    out_.tp = parallel("tp-size");
    out_.pp = parallel("pp-size");
    out_.ep = parallel("ep-size");
    out_.attention_dp = line().on("enable-attention-dp");
    if (out_.tp % out_.ep != 0) {
      complain("ep-size", std::to_string(out_.ep),
               fmt::format("a divisor of the tensor-parallel size {}", out_.tp));
    }
    try {
      models::check_sharding(model(), out_.shard(0));
    } catch (const ConfigError& error) {
      problems_.take(error);
    }
  }

  void dtypes() {
    const std::string asked = line().text("dtype").value_or("auto");
    out_.dtype =
        asked == "auto" ? model().dtype : models::parse_dtype(asked).value_or(model().dtype);
    if (asked == "auto" && out_.dtype == DType::kFloat32) {
      out_.dtype = DType::kBFloat16;
      out_.assumptions.emplace_back("dtype auto: a float32 checkpoint is loaded as bfloat16");
    }
    out_.kv_dtype = out_.dtype;
    const std::string kv = line().text("kv-cache-dtype").value_or("auto");
    const bool checkpoint_fp8 =
        model().quantization && model().quantization->kv_cache.rfind("fp8", 0) == 0;
    if (kv.rfind("fp8", 0) == 0 || kv == "nvfp4" || (kv == "auto" && checkpoint_fp8)) {
      out_.kv_dtype = DType::kFloat8;
      out_.nvfp4_kv = kv == "nvfp4";
    } else if (kv != "auto") {
      out_.kv_dtype = models::parse_dtype(kv).value_or(out_.dtype);
    }
    if (kv == "auto" && checkpoint_fp8) {
      out_.assumptions.emplace_back("kv-cache-dtype auto: the checkpoint asks for fp8");
    }
  }

  std::int64_t count(const char* flag, std::int64_t most) {
    const std::int64_t value = line().integer(flag).value_or(1);
    if (value < 1 || value > most) {
      complain(flag, std::to_string(value), fmt::format("1 to {}", most));
      return 1;
    }
    return value;
  }

  void sizes() {
    out_.max_batch_size = count("max-batch-size", kMostInBatch);
    out_.max_num_tokens = count("max-num-tokens", kMostInBatch);
    constexpr std::int64_t kMostBeams = 1024;
    out_.beam_width = count("max-beam-width", kMostBeams);
    constexpr std::int64_t kLongest = std::int64_t{1} << 31;
    out_.max_model_len = model().length.derived;
    if (line().integer("max-seq-len")) {
      out_.max_model_len = Tokens{count("max-seq-len", kLongest)};
    }
    out_.chunked_prefill = line().on("enable-chunked-prefill");
  }

  void cache() {
    out_.free_fraction = line().number("free-gpu-memory-fraction").value_or(0.9);
    if (!(out_.free_fraction > 0) || out_.free_fraction >= 1) {
      complain("free-gpu-memory-fraction", fmt::format("{}", out_.free_fraction),
               "above 0 and below 1",
               "Invalid freeMemFraction, freeMemFraction must be between (0.0, 1.0)");
    }
    out_.tokens_per_block =
        Tokens{line().integer("tokens-per-block").value_or(out_.rules.tokens_per_block)};
    constexpr std::int64_t kLargestBlock = 4096;
    const std::int64_t block = out_.tokens_per_block.count();
    if (block < 1 || block > kLargestBlock || (block & (block - 1)) != 0) {
      complain("tokens-per-block", std::to_string(block),
               fmt::format("a power of two up to {}", kLargestBlock));
      out_.tokens_per_block = Tokens{32};
    }
    if (const auto tokens = line().integer("kv-cache-max-tokens")) {
      out_.max_kv_tokens = Tokens{*tokens};
    }
    if (const auto bytes = line().integer("max-gpu-total-bytes"); bytes && *bytes > 0) {
      out_.max_kv_bytes = Bytes{*bytes};
    }
    out_.host_cache =
        Bytes{std::max<std::int64_t>(0, line().integer("host-cache-size").value_or(0))};
    out_.block_reuse = line().boolean("enable-block-reuse").value_or(true);
    out_.moe_backend = line().text("moe-backend").value_or("AUTO");
    out_.moe_tokens = line().integer("moe-max-num-tokens");
  }

  void graphs() {
    const std::int64_t most =
        std::min(line().integer("cuda-graph-max-batch-size").value_or(128), out_.max_batch_size);
    const bool pytorch = line().text("backend").value_or("pytorch") == "pytorch";
    if (out_.rules.captures_graphs && pytorch && most > 0) {
      out_.graph_sizes = capture_sizes(most, line().on("cuda-graph-enable-padding"));
      std::reverse(out_.graph_sizes.begin(), out_.graph_sizes.end());
    }
  }
};

}  // namespace

OrderedJson Deployment::resolved() const {
  OrderedJson out;
  out["max_batch_size"] = max_batch_size;
  out["max_num_tokens"] = max_num_tokens;
  out["max_beam_width"] = beam_width;
  out["free_gpu_memory_fraction"] = free_fraction;
  out["tokens_per_block"] = tokens_per_block.count();
  out["enable_attention_dp"] = attention_dp;
  out["enable_block_reuse"] = block_reuse;
  out["enable_chunked_prefill"] = chunked_prefill;
  out["moe_backend"] = moe_backend;
  out["cuda_graph_batch_sizes"] = graph_sizes;
  return out;
}

std::vector<Knob> Deployment::knobs() const {
  using Kind = Knob::Kind;
  std::vector<Knob> out = {
      {Kind::kLonger, "max-seq-len", static_cast<double>(max_model_len.count())},
      {Kind::kFraction, "free-gpu-memory-fraction", free_fraction},
      {Kind::kLess, "max-num-tokens", static_cast<double>(max_num_tokens)},
      {Kind::kLess, "max-batch-size", static_cast<double>(max_batch_size)},
  };
  add_float8_knob(*this, "fp8", out);
  out.push_back({Kind::kCards, "tp-size", static_cast<double>(tp)});
  return out;
}

models::ShardPlan Deployment::shard(int stage) const {
  models::ShardPlan plan;
  plan.tp = tp;
  plan.pp = pp;
  plan.pp_rank = stage;
  plan.ep = ep;
  plan.dtype = dtype;
  plan.compute_major = gpu.compute_major;
  plan.towers = true;
  if (attention_dp) {
    // Only routed experts are divided (modeling_deepseekv3.py: shared_tp_size, mlp_tp_size).
    plan.attention_tp = 1;
    plan.dense_tp = 1;
    plan.head_tp = 1;
    plan.whole_shared_experts = true;
  }
  return plan;
}

std::vector<models::KvLayerSpec> Deployment::kv_layers(int stage) const {
  return models::kv_layers(*model, shard(stage));
}

Bytes Deployment::kv_token_bytes(const models::KvLayerSpec& layer) const {
  if (nvfp4_kv) {
    const std::int64_t values = layer.kv_heads * (layer.head_dim + layer.v_head_dim);
    return Bytes{values / 2 + values / 16};
  }
  return models::kv_bytes_per_token(layer, kv_dtype);
}

Bytes Deployment::state_bytes(int stage) const {
  Bytes sum;
  for (const models::KvLayerSpec& layer : kv_layers(stage)) {
    sum += models::state_bytes(layer, dtype);
  }
  return sum;
}

Bytes kv_token_bytes(const Deployment& deployment, int stage) {
  Bytes sum;
  for (const models::KvLayerSpec& layer : deployment.kv_layers(stage)) {
    sum += deployment.kv_token_bytes(layer);
  }
  return sum;
}

Blocks host_blocks(const Deployment& deployment, int stage) {
  const Bytes token = kv_token_bytes(deployment, stage);
  const std::int64_t tokens = token > Bytes{0} ? deployment.host_cache / token : 0;
  return Blocks{tokens / deployment.tokens_per_block.count()};
}

bool offloads(const Deployment& deployment) {
  constexpr std::int64_t kDefaultPriority = 35;
  constexpr std::int64_t kDefaultLeast = 30;
  const launch::Launch& line = deployment.launch;
  return deployment.host_cache > Bytes{0} && line.boolean("onboard-blocks").value_or(true) &&
         line.integer("secondary-offload-min-priority").value_or(kDefaultLeast) <= kDefaultPriority;
}

Deployment resolve(launch::Launch launch, const std::shared_ptr<const models::ModelSpec>& model,
                   const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed) {
  return Resolver(std::move(launch), model, gpu, card, assumed).run();
}

}  // namespace oomcast::trtllm
