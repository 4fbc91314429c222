#include "sim/engines/vllm/layer_style.hpp"

#include <algorithm>
#include <array>

namespace oomcast::vllm {
namespace {

template <std::size_t N>
bool among(std::string_view family, const std::array<std::string_view, N>& families) {
  return std::find(families.begin(), families.end(), family) != families.end();
}

// Model files whose MLP assigns gate_up, activation and output to one variable.
constexpr std::array<std::string_view, 17> kOneVariableMlp = {
    "llama",    "llama4", "mistral", "glm",       "glm4",      "glm4v",
    "chatglm",  "aquila", "xverse",  "phi3",      "internlm",  "internlm3",
    "minicpm3", "jamba",  "decilm",  "falcon_h1", "nemotron_h"};
constexpr std::array<std::string_view, 2> kSandwich = {"gemma2", "gemma3"};
constexpr std::array<std::string_view, 2> kPostNorm = {"olmo2", "olmo3"};
constexpr std::array<std::string_view, 5> kScaled = {"granite", "granite_hybrid", "minicpm",
                                                     "minicpm3", "phimoe"};
constexpr std::array<std::string_view, 6> kNewNormOutputs = {
    "gemma", "gemma2", "gemma3", "qwen3_next", "qwen3_5", "qwen3_5_moe"};
constexpr std::array<std::string_view, 4> kOutputArguments = {"qwen3_next", "qwen3_5",
                                                              "qwen3_5_moe", "granite_hybrid"};
constexpr std::array<std::string_view, 7> kDeepseekLayers = {
    "deepseek",      "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"};

}  // namespace

LayerStyle layer_style(std::string_view family, const Version& version) {
  LayerStyle style;
  style.mlp_keeps_gate_up = !among(family, kOneVariableMlp);
  style.norms_in_place = !among(family, kNewNormOutputs);
  constexpr Version kNormsLeftAlone{0, 20, 0};
  style.compiles_norms = among(family, kNewNormOutputs) && version < kNormsLeftAlone;
  if (among(family, kSandwich)) {
    style.residual = Residual::kSandwich;
  } else if (among(family, kPostNorm)) {
    style.residual = Residual::kPostNorm;
  } else if (among(family, kScaled)) {
    style.residual = Residual::kScaled;
  } else if (family == "chatglm") {
    style.residual = Residual::kNamed;
  } else if (family == "deepseek_v4") {
    style.residual = Residual::kStreams;
  }
  style.returns_residual = family == "phimoe";
  // deepseek_v2.py and qwen3_next.py of each release read; Granite's recorded in 0.19, gone in
  // 0.33.
  constexpr Version kDeepseekRewritten{0, 25, 0};
  constexpr Version kQwenRewritten{0, 26, 0};
  style.makes_attention_output = among(family, kOutputArguments) && version < kQwenRewritten;
  if (among(family, kDeepseekLayers) && version < kDeepseekRewritten) {
    style.clones_first_residual = true;
    style.keeps_attention_input = true;
  }
  // layers/fused_moe/shared_fused_moe.py of each release read.
  constexpr Version kSharedHandedOver{0, 11, 1};
  style.shared_inside_experts = version >= kSharedHandedOver;
  style.routes_inside_experts = style.shared_inside_experts &&
                                (among(family, kDeepseekLayers) || among(family, kOutputArguments));
  // qwen3_next.py, mamba/gdn_linear_attn.py and mamba/gdn/qwen_gdn_linear_attn.py of each release
  // read.
  constexpr Version kGateFused{0, 24, 0};
  constexpr Version kOutputProjectionApart{0, 22, 0};
  constexpr Version kNormReshapes{0, 31, 0};
  constexpr Version kRowStrides{0, 31, 0};
  style.rotates_dense_rows = version < kRowStrides;
  style.fuses_query_gate = version >= kGateFused;
  style.interleaves_states = family == "qwen3_next";
  style.keeps_recurrent_output = version >= kOutputProjectionApart;
  style.keeps_gate_copy = version < kNormReshapes;
  return style;
}

}  // namespace oomcast::vllm
