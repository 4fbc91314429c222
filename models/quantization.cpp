#include "models/quantization.hpp"

#include <algorithm>
#include <boost/algorithm/string/case_conv.hpp>

#include "models/quantization_kept.hpp"

namespace oomcast::models {
namespace {

constexpr std::size_t kMostIgnored = 200'000;
constexpr std::size_t kMostSchemes = 16;
// ModelOpt's word for a scheme by module.
constexpr std::string_view kMixedAlgorithm = "MIXED_PRECISION";

// Lists of names to leave alone go by several keys; lengths run to thousands of experts.
void read_ignored(const JsonView& view, Quantization& out) {
  for (const char* const key : {"modules_to_not_convert", "ignored_layers", "ignore",
                                "exclude_modules", "llm_int8_skip_modules"}) {
    if (auto names = view.texts(key)) {
      if (out.ignore.size() + names->size() > kMostIgnored) {
        view.complain(key, fmt::format("at most {} names", kMostIgnored));
        return;
      }
      out.ignore.insert(out.ignore.end(), names->begin(), names->end());
    }
  }
}

void read_block(const JsonView& view, std::string_view key, Quantization& out) {
  const Json* block = view.find(key);
  if (block == nullptr) {
    return;
  }
  const bool pair = block->is_array() && block->size() == 2 && (*block)[0].is_number_integer() &&
                    (*block)[1].is_number_integer();
  const auto in_range = [](const Json& side) {
    return side.is_number_integer() && side.get<std::int64_t>() > 0 &&
           side.get<std::int64_t>() <= 65536;
  };
  if (!pair || !in_range((*block)[0]) || !in_range((*block)[1])) {
    view.complain(key, "two sizes from 1 to 65536, e.g. [128, 128]");
    return;
  }
  out.block_rows = (*block)[0].get<std::int64_t>();
  out.block_columns = (*block)[1].get<std::int64_t>();
}

void read_group(const JsonView& group, const JsonView& weights, Quantization& out) {
  out.weight_bits = weights.integer("num_bits", 1, 32).value_or(out.weight_bits);
  out.weight_float = weights.text("type").value_or("int") == "float";
  out.symmetric = weights.boolean("symmetric").value_or(true);
  const std::string strategy = weights.text("strategy").value_or("");
  out.per_channel = strategy == "channel";
  out.group_size = weights.integer("group_size", -1, 65536).value_or(0);
  read_block(weights, "block_structure", out);
  if (const auto inputs = group.object("input_activations")) {
    // "local": computed per group of the activation, under one static global scale.
    const Json* dynamic = inputs->find("dynamic");
    out.static_activations = dynamic == nullptr || !dynamic->is_boolean() || !dynamic->get<bool>();
  }
}

// compressed-tensors: config_groups.group_N.weights. A group that targets all linears is the rule
// for the model; groups that target modules by name stand beside each other.
void read_groups(const JsonView& view, Quantization& out) {
  const auto groups = view.object("config_groups");
  if (!groups) {
    return;
  }
  for (const auto& [name, json] : groups->raw().items()) {
    const auto group = groups->object(name);
    const auto weights = group ? group->object("weights") : std::nullopt;
    if (!weights) {
      continue;
    }
    auto targets = group->texts("targets").value_or(std::vector<std::string>{});
    const bool all =
        targets.empty() || std::find(targets.begin(), targets.end(), "Linear") != targets.end();
    if (all) {
      read_group(*group, *weights, out);
      continue;
    }
    Quantization other;
    other.source = out.source;
    other.method = out.method;
    other.format = group->text("format").value_or("");
    other.targets = std::move(targets);
    read_group(*group, *weights, other);
    out.others.push_back(std::move(other));
    out.rest_in_16_bits = true;
    if (out.others.size() > kMostSchemes) {
      view.complain("config_groups", fmt::format("at most {} groups", kMostSchemes));
      return;
    }
  }
}

// In lower case: ModelOpt writes FP8, others fp8.
std::string kv_cache_of(const JsonView& view) {
  if (const Json* algo = view.find("kv_cache_quant_algo"); algo != nullptr && algo->is_string()) {
    return boost::algorithm::to_lower_copy(algo->get<std::string>());
  }
  const Json* scheme = view.find("kv_cache_scheme");
  if (scheme == nullptr) {
    return {};
  }
  if (scheme->is_string()) {
    return boost::algorithm::to_lower_copy(scheme->get<std::string>());
  }
  if (const auto object = view.object("kv_cache_scheme")) {
    const bool eight = object->integer("num_bits", 1, 32).value_or(0) == 8;
    return eight && object->text("type").value_or("") == "float" ? "fp8" : "";
  }
  return {};
}

void settle_method(const JsonView& view, Quantization& out) {
  const std::string& method = out.method;
  if (method == "fp8" || method == "fbgemm_fp8") {
    out.weight_bits = 8;
    out.weight_float = true;
    out.per_channel = method == "fbgemm_fp8";
    read_block(view, "weight_block_size", out);
    out.static_activations = view.text("activation_scheme").value_or("dynamic") == "static";
  } else if (method == "mxfp4" || method == "gpt_oss_mxfp4") {
    out.weight_bits = 4;
    out.weight_float = true;
    out.group_size = 32;
  } else if (method == "bitsandbytes") {
    out.weight_bits = view.boolean("load_in_8bit").value_or(false) ? 8 : 4;
  } else if (method == "awq" || method == "gptq" || method == "auto-round") {
    out.weight_bits = view.integer("bits", 2, 8).value_or(4);
    out.group_size = view.integer("group_size", -1, 65536).value_or(128);
    out.symmetric = method == "awq" ? !view.boolean("zero_point").value_or(true)
                                    : view.boolean("sym").value_or(true);
  }
}

void set_algorithm(const std::string& algorithm, const JsonView& view, Quantization& out) {
  out.format = algorithm;
  if (algorithm == "FP8") {
    out.weight_bits = 8;
    out.weight_float = true;
    out.static_activations = true;
  } else if (algorithm == "NVFP4" || algorithm == "W4A16_NVFP4") {
    out.weight_bits = 4;
    out.weight_float = true;
    out.group_size = view.integer("group_size", 1, 65536).value_or(16);
    out.static_activations = algorithm == "NVFP4";
  } else if (algorithm == "MXFP8") {
    out.weight_bits = 8;
    out.weight_float = true;
    out.group_size = 32;
  }
}

// quantized_layers: {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}, …}.
// What is not listed stays as it is.
void read_layer_algorithms(const JsonView& view, Quantization& out) {
  const auto layers = view.object("quantized_layers");
  if (!layers) {
    return;
  }
  if (layers->raw().size() > kMostIgnored) {
    view.complain("quantized_layers", fmt::format("at most {} names", kMostIgnored));
    return;
  }
  std::vector<Quantization> by_algorithm;
  for (const auto& [name, json] : layers->raw().items()) {
    const auto one = layers->object(name);
    const auto algorithm = one ? one->text("quant_algo") : std::nullopt;
    if (!algorithm) {
      continue;
    }
    auto at = std::find_if(by_algorithm.begin(), by_algorithm.end(),
                           [&](const Quantization& other) { return other.format == *algorithm; });
    if (at == by_algorithm.end()) {
      at = by_algorithm.insert(by_algorithm.end(), Quantization{});
      at->method = "modelopt";
      at->source = out.source;
      set_algorithm(*algorithm, *one, *at);
      if (by_algorithm.size() > kMostSchemes) {
        view.complain("quantized_layers", fmt::format("at most {} algorithms", kMostSchemes));
        return;
      }
    }
    at->targets.push_back(name);
  }
  out.others = std::move(by_algorithm);
}

// ModelOpt's algorithm names, in either file. Over a checkpoint that was quantised before
// (quant_method fp8), ModelOpt lists what it has redone; the rest keeps its first scheme, and the
// list of excluded modules means ModelOpt's work only.
void settle_algorithm(const JsonView& view, Quantization& out) {
  const auto algorithm = view.text("quant_algo");
  if (!algorithm) {
    return;
  }
  if (*algorithm != kMixedAlgorithm) {
    set_algorithm(*algorithm, view, out);
  } else {
    const bool redone = out.method == "fp8";
    read_layer_algorithms(view, out);
    out.rest_in_16_bits = !redone;
    if (redone) {
      settle_method(view, out);
      out.group_size = 0;
    } else {
      out.format = *algorithm;
    }
  }
  if (out.method.empty()) {
    out.method = "modelopt";
  }
}

// DeepSeek V4 says beside its FP8 blocks that the routed experts are in 4 bits; all its scales are
// bytes (facts "models" 3).
void read_expert_dtype(const Config& config, Quantization& out) {
  if (!config.has("expert_dtype") || out.method != "fp8") {
    return;
  }
  out.byte_scales = true;
  const std::string dtype = config.text("expert_dtype").value_or("");
  if (dtype == "fp4" && out.others.empty()) {
    Quantization experts;
    experts.source = "expert_dtype";
    experts.method = "mxfp4";
    experts.weight_bits = 4;
    experts.weight_float = true;
    experts.group_size = 32;
    experts.targets = {"experts"};
    out.others.push_back(std::move(experts));
  } else if (dtype != "fp4" && dtype != "fp8") {
    config.complain("expert_dtype", "fp4 or fp8");
  }
}

// No engine has 4-bit kernels for other layers of such checkpoints: whatever their lists say, the
// experts alone are quantised (vLLM quantization/mxfp4.py, SGLang the same).
void keep_to_experts(Quantization& out) {
  if (out.method != "mxfp4" && out.method != "gpt_oss_mxfp4") {
    return;
  }
  Quantization experts = out;
  experts.ignore.clear();
  experts.targets = {"experts"};
  out.others = {std::move(experts)};
  out.rest_in_16_bits = true;
  out.ignore.clear();
}

}  // namespace

void read_quantization(const Config& config, const Json& hf_quant_config, ModelSpec& spec) {
  Quantization out;
  const Json* block = config.find("quantization_config");
  const Json* other = config.find("compression_config");
  const char* const key = block != nullptr ? "quantization_config" : "compression_config";
  block = block != nullptr ? block : other;
  if (block != nullptr) {
    if (!block->is_object()) {
      config.complain(key, "a JSON object or null");
      return;
    }
    const JsonView view(*block, config.source(), key, config.problems());
    out.source = key;
    out.method = view.text("quant_method").value_or("");
    out.format = view.text("format").value_or("");
    settle_method(view, out);
    if (!view.has("quantized_layers")) {
      read_groups(view, out);
    }
    settle_algorithm(view, out);
    read_ignored(view, out);
    read_expert_dtype(config, out);
    out.kv_cache = kv_cache_of(view);
    if (out.method.empty()) {
      view.complain("quant_method", "a quantisation method, e.g. fp8 or awq");
      return;
    }
  }
  if (!hf_quant_config.is_null()) {
    const JsonView file(hf_quant_config, config.source() + " (hf_quant_config.json)", "",
                        config.problems());
    if (const auto view = file.object("quantization")) {
      const bool named = !out.method.empty();
      if (!named) {
        out.source = "hf_quant_config.json";
      }
      settle_algorithm(*view, out);
      if (out.ignore.empty()) {
        read_ignored(*view, out);
      }
      read_expert_dtype(config, out);
      if (out.kv_cache.empty()) {
        out.kv_cache = kv_cache_of(*view);
      }
    }
  }
  if (out.method == "fp8" && !out.others.empty()) {
    out.ignore.clear();
  }
  keep_to_experts(out);
  if (!out.method.empty()) {
    mark_kept(spec, out, config.problems(), config.source());
    spec.quantization = std::move(out);
  }
}

}  // namespace oomcast::models
