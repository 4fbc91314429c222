// KV cache of compressed attention (DeepSeek V4): blocks in which pages of several sizes lie side
// by side. Read from vLLM 0.25 (v1/core/kv_cache_utils.py _get_kv_cache_groups_uniform_groups and
// _get_kv_cache_config_packed, models/deepseek_v4/attention.py and compressor.py).
//
// Every layer has a window of latents, compressed layers their entries (one for `ratio` tokens), an
// indexer's keys and the states of entries in the making. Entries and keys make the first group, of
// which a block holds all pages; windows and states, in blocks of fewer tokens so that their pages
// fit in those of the entries, are divided into groups of as many layers.
#pragma once

#include "sim/engines/vllm/deployment.hpp"

namespace oomcast::vllm {

bool packs_kv(const models::ModelSpec& model);

// Tokens of a window's and a state's block are the engine's constants; `block_size` must be a
// multiple of the largest ratio. Pages and groups are the stage's.
KvLayout packed_kv_layout(const Deployment& deployment, int stage);

}  // namespace oomcast::vllm
