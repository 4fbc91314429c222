// Every builder, for the one table of families (families.cpp).
#pragma once

#include "models/families/decoder.hpp"

namespace oomcast::models {

void build_llama(const Config& config, ModelSpec& spec);
void build_mistral(const Config& config, ModelSpec& spec);
void build_granite(const Config& config, ModelSpec& spec);
void build_internlm2(const Config& config, ModelSpec& spec);
void build_seed_oss(const Config& config, ModelSpec& spec);
void build_exaone(const Config& config, ModelSpec& spec);
void build_exaone4(const Config& config, ModelSpec& spec);
void build_minicpm(const Config& config, ModelSpec& spec);
void build_qwen1(const Config& config, ModelSpec& spec);
void build_qwen2(const Config& config, ModelSpec& spec);
void build_qwen3(const Config& config, ModelSpec& spec);
void build_mimo(const Config& config, ModelSpec& spec);
void build_gemma(const Config& config, ModelSpec& spec);
void build_gemma2(const Config& config, ModelSpec& spec);
void build_gemma3(const Config& config, ModelSpec& spec);
void build_phi(const Config& config, ModelSpec& spec);
void build_phi3(const Config& config, ModelSpec& spec);
void build_olmo2(const Config& config, ModelSpec& spec);
void build_olmo3(const Config& config, ModelSpec& spec);
void build_stablelm(const Config& config, ModelSpec& spec);
void build_starcoder2(const Config& config, ModelSpec& spec);
void build_cohere(const Config& config, ModelSpec& spec);
void build_baichuan(const Config& config, ModelSpec& spec);
void build_chatglm(const Config& config, ModelSpec& spec);
void build_glm(const Config& config, ModelSpec& spec);
void build_mixtral(const Config& config, ModelSpec& spec);
void build_qwen2_moe(const Config& config, ModelSpec& spec);
void build_qwen3_moe(const Config& config, ModelSpec& spec);
void build_glm4_moe(const Config& config, ModelSpec& spec);
void build_minimax_m2(const Config& config, ModelSpec& spec);
void build_ernie45_moe(const Config& config, ModelSpec& spec);
void build_phimoe(const Config& config, ModelSpec& spec);
void build_gpt_oss(const Config& config, ModelSpec& spec);
void build_llama4(const Config& config, ModelSpec& spec);
void build_deepseek_moe(const Config& config, ModelSpec& spec);
void build_deepseek_mla(const Config& config, ModelSpec& spec);
void build_minicpm3(const Config& config, ModelSpec& spec);
void build_qwen3_next(const Config& config, ModelSpec& spec);
void build_gemma4(const Config& config, ModelSpec& spec);
void build_gemma3n(const Config& config, ModelSpec& spec);
void build_nemotron_h(const Config& config, ModelSpec& spec);
void build_granite_hybrid(const Config& config, ModelSpec& spec);
void build_falcon_h1(const Config& config, ModelSpec& spec);
void build_jamba(const Config& config, ModelSpec& spec);
void build_kimi_linear(const Config& config, ModelSpec& spec);
void build_deepseek_v4(const Config& config, ModelSpec& spec);
void build_longcat(const Config& config, ModelSpec& spec);
void build_mimo_v2(const Config& config, ModelSpec& spec);
void build_laguna(const Config& config, ModelSpec& spec);
void build_muse_glimmer(const Config& config, ModelSpec& spec);
void build_step35(const Config& config, ModelSpec& spec);
void build_step3(const Config& config, ModelSpec& spec);
void build_minimax_m3(const Config& config, ModelSpec& spec);
void build_dbrx(const Config& config, ModelSpec& spec);
void build_phi3_small(const Config& config, ModelSpec& spec);
void build_molmo(const Config& config, ModelSpec& spec);
void build_decilm(const Config& config, ModelSpec& spec);
void build_mllama(const Config& config, ModelSpec& spec);
void build_eagle(const Config& config, ModelSpec& spec);
void build_eagle3(const Config& config, ModelSpec& spec);
void build_qwen3_omni(const Config& config, ModelSpec& spec);
void build_glm4(const Config& config, ModelSpec& spec);

}  // namespace oomcast::models
