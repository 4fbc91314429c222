// The one table: architecture -> builder, and which architecture a model_type stands for.
#include <array>

#include "models/families/builders.hpp"

namespace oomcast::models {

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = [] {
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
        // Wrappers: the language model is named by the nested config.
        {"Gemma3ForConditionalGeneration", "gemma3", build_gemma3},
        {"LlavaForConditionalGeneration", "llava", nullptr},
        {"LlavaNextForConditionalGeneration", "llava_next", nullptr},
        {"Mistral3ForConditionalGeneration", "mistral3", nullptr},
    };
    std::sort(table.begin(), table.end(), [](const Family& left, const Family& right) {
      return left.architecture < right.architecture;
    });
    return table;
  }();
  return kFamilies;
}

std::string_view architecture_of_model_type(std::string_view model_type) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 32> kTypes = {{
      {"baichuan", "BaichuanForCausalLM"},
      {"chatglm", "ChatGLMModel"},
      {"cohere", "CohereForCausalLM"},
      {"exaone", "ExaoneForCausalLM"},
      {"exaone4", "Exaone4ForCausalLM"},
      {"gemma", "GemmaForCausalLM"},
      {"gemma2", "Gemma2ForCausalLM"},
      {"gemma3", "Gemma3ForConditionalGeneration"},
      {"gemma3_text", "Gemma3ForCausalLM"},
      {"glm", "GlmForCausalLM"},
      {"glm4", "Glm4ForCausalLM"},
      {"glm4v", "Glm4vForConditionalGeneration"},
      {"granite", "GraniteForCausalLM"},
      {"internlm2", "InternLM2ForCausalLM"},
      {"llama", "LlamaForCausalLM"},
      {"minicpm", "MiniCPMForCausalLM"},
      {"ministral3", "MistralForCausalLM"},
      {"mistral", "MistralForCausalLM"},
      {"mistral3", "Mistral3ForConditionalGeneration"},
      {"olmo2", "Olmo2ForCausalLM"},
      {"olmo3", "Olmo3ForCausalLM"},
      {"phi", "PhiForCausalLM"},
      {"phi3", "Phi3ForCausalLM"},
      {"qwen", "QWenLMHeadModel"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"},
      {"qwen2_vl", "Qwen2VLForConditionalGeneration"},
      {"qwen3", "Qwen3ForCausalLM"},
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
