// The one table: architecture -> builder, and which architecture a model_type stands for.
#include <array>

#include "models/families/builders.hpp"

namespace oomcast::models {

const std::vector<Family>& families() {
  static const std::vector<Family> sorted = [] {
    std::vector<Family> table = {
        {"AquilaForCausalLM", "llama", build_llama},
        {"AquilaModel", "llama", build_llama},
        {"BaichuanForCausalLM", "baichuan", build_baichuan},
        {"BaiChuanForCausalLM", "baichuan", build_baichuan},
        {"ChatGLMForConditionalGeneration", "chatglm", build_chatglm},
        {"ChatGLMModel", "chatglm", build_chatglm},
        {"CohereForCausalLM", "cohere", build_cohere},
        {"Exaone4ForCausalLM", "exaone4", build_exaone4},
        {"ExaoneForCausalLM", "exaone", build_exaone},
        {"Gemma2ForCausalLM", "gemma2", build_gemma2},
        {"Gemma3ForCausalLM", "gemma3", build_gemma3},
        {"GemmaForCausalLM", "gemma", build_gemma},
        {"Glm4ForCausalLM", "glm4", build_glm4},
        {"Glm4vForConditionalGeneration", "glm4v", build_glm4},
        {"GlmForCausalLM", "glm", build_glm},
        {"GraniteForCausalLM", "granite", build_granite},
        {"InternLM2ForCausalLM", "internlm2", build_internlm2},
        {"InternLM3ForCausalLM", "internlm3", build_llama},
        {"InternLMForCausalLM", "internlm", build_llama},
        {"LlamaForCausalLM", "llama", build_llama},
        {"MiMoForCausalLM", "mimo", build_mimo},
        {"MiniCPMForCausalLM", "minicpm", build_minicpm},
        {"Ministral3ForCausalLM", "mistral", build_mistral},
        {"MistralForCausalLM", "mistral", build_mistral},
        {"Olmo2ForCausalLM", "olmo2", build_olmo2},
        {"Olmo3ForCausalLM", "olmo3", build_olmo3},
        {"Phi3ForCausalLM", "phi3", build_phi3},
        {"PhiForCausalLM", "phi", build_phi},
        {"QWenLMHeadModel", "qwen", build_qwen1},
        {"Qwen2ForCausalLM", "qwen2", build_qwen2},
        {"Qwen2VLForConditionalGeneration", "qwen2_vl", build_qwen2},
        {"Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni", build_qwen2},
        {"Qwen2_5OmniModel", "qwen2_5_omni", build_qwen2},
        {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", build_qwen2},
        {"Qwen3ForCausalLM", "qwen3", build_qwen3},
        {"Qwen3VLForConditionalGeneration", "qwen3_vl", build_qwen3},
        {"SeedOssForCausalLM", "seed_oss", build_seed_oss},
        {"StableLmForCausalLM", "stablelm", build_stablelm},
        {"Starcoder2ForCausalLM", "starcoder2", build_starcoder2},
        {"XverseForCausalLM", "xverse", build_llama},
        {"DeepseekForCausalLM", "deepseek", build_deepseek_moe},
        {"DeepseekV2ForCausalLM", "deepseek_v2", build_deepseek_mla},
        {"DeepseekV32ForCausalLM", "deepseek_v32", build_deepseek_mla},
        {"DeepseekV3ForCausalLM", "deepseek_v3", build_deepseek_mla},
        {"Ernie4_5_MoeForCausalLM", "ernie4_5_moe", build_ernie45_moe},
        {"Glm4MoeForCausalLM", "glm4_moe", build_glm4_moe},
        {"Glm4MoeLiteForCausalLM", "glm4_moe_lite", build_deepseek_mla},
        {"GlmMoeDsaForCausalLM", "glm_moe_dsa", build_deepseek_mla},
        {"GptOssForCausalLM", "gpt_oss", build_gpt_oss},
        {"Llama4ForCausalLM", "llama4", build_llama4},
        {"Llama4ForConditionalGeneration", "llama4", build_llama4},
        {"MiniCPM3ForCausalLM", "minicpm3", build_minicpm3},
        {"MiniMaxM2ForCausalLM", "minimax_m2", build_minimax_m2},
        {"MixtralForCausalLM", "mixtral", build_mixtral},
        {"PhiMoEForCausalLM", "phimoe", build_phimoe},
        {"Qwen2MoeForCausalLM", "qwen2_moe", build_qwen2_moe},
        {"Qwen3MoeForCausalLM", "qwen3_moe", build_qwen3_moe},
        {"Qwen3NextForCausalLM", "qwen3_next", build_qwen3_next},
        {"Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe", build_qwen3_moe},
        {"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", build_qwen3_moe},
        {"Qwen3_5ForCausalLM", "qwen3_5", build_qwen3_next},
        {"Qwen3_5ForConditionalGeneration", "qwen3_5", build_qwen3_next},
        {"Qwen3_5MoeForCausalLM", "qwen3_5_moe", build_qwen3_next},
        {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", build_qwen3_next},
        // Wrappers: the language model is named by the nested config.
        {"Gemma3ForConditionalGeneration", "gemma3", build_gemma3},
        {"KimiK25ForConditionalGeneration", "kimi_k25", nullptr},
        {"KimiVLForConditionalGeneration", "kimi_vl", nullptr},
        {"LlavaForConditionalGeneration", "llava", nullptr},
        {"LlavaNextForConditionalGeneration", "llava_next", nullptr},
        {"Mistral3ForConditionalGeneration", "mistral3", nullptr},
    };
    std::sort(table.begin(), table.end(), [](const Family& left, const Family& right) {
      return left.architecture < right.architecture;
    });
    return table;
  }();
  return sorted;
}

std::string_view architecture_of_model_type(std::string_view model_type) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 44> kTypes = {{
      {"baichuan", "BaichuanForCausalLM"},
      {"chatglm", "ChatGLMModel"},
      {"cohere", "CohereForCausalLM"},
      {"deepseek_v2", "DeepseekV2ForCausalLM"},
      {"deepseek_v3", "DeepseekV3ForCausalLM"},
      {"deepseek_v32", "DeepseekV32ForCausalLM"},
      {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM"},
      {"exaone", "ExaoneForCausalLM"},
      {"exaone4", "Exaone4ForCausalLM"},
      {"gemma", "GemmaForCausalLM"},
      {"gemma2", "Gemma2ForCausalLM"},
      {"gemma3", "Gemma3ForConditionalGeneration"},
      {"gemma3_text", "Gemma3ForCausalLM"},
      {"glm", "GlmForCausalLM"},
      {"glm4", "Glm4ForCausalLM"},
      {"glm4v", "Glm4vForConditionalGeneration"},
      {"glm4_moe", "Glm4MoeForCausalLM"},
      {"glm_moe_dsa", "GlmMoeDsaForCausalLM"},
      {"gpt_oss", "GptOssForCausalLM"},
      {"granite", "GraniteForCausalLM"},
      {"internlm2", "InternLM2ForCausalLM"},
      {"kimi_k2", "DeepseekV3ForCausalLM"},
      {"llama", "LlamaForCausalLM"},
      {"minicpm", "MiniCPMForCausalLM"},
      {"ministral3", "MistralForCausalLM"},
      {"mistral", "MistralForCausalLM"},
      {"mistral3", "Mistral3ForConditionalGeneration"},
      {"mixtral", "MixtralForCausalLM"},
      {"olmo2", "Olmo2ForCausalLM"},
      {"olmo3", "Olmo3ForCausalLM"},
      {"phi", "PhiForCausalLM"},
      {"phi3", "Phi3ForCausalLM"},
      {"qwen", "QWenLMHeadModel"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"},
      {"qwen2_vl", "Qwen2VLForConditionalGeneration"},
      {"qwen3", "Qwen3ForCausalLM"},
      {"qwen3_moe", "Qwen3MoeForCausalLM"},
      {"qwen3_next", "Qwen3NextForCausalLM"},
      {"qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration"},
      {"qwen3_vl", "Qwen3VLForConditionalGeneration"},
      {"seed_oss", "SeedOssForCausalLM"},
      {"stablelm", "StableLmForCausalLM"},
      {"starcoder2", "Starcoder2ForCausalLM"},
  }};
  for (const auto& [type, architecture] : kTypes) {
    if (type == model_type) {
      return architecture;
    }
  }
  return {};
}

}  // namespace oomcast::models
