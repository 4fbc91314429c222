// Latent attention over the entries that an indexer chooses (DeepSeek V3.2, GLM-5): which backend
// a release takes for a card, and what it asks of the workspace that all layers share.
#pragma once

#include <string>

#include "models/spec.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/vllm/deployment.hpp"

namespace oomcast::vllm {

bool has_indexer(const models::ModelSpec& model);

// First backend of the card's generation that takes the model and the cache's format
// (platforms/cuda.py _get_backend_priorities, attention/backends/mla/*_sparse.py).
std::string sparse_mla_backend(const Deployment& deployment);

// Whether the cache is DeepSeek's packed one (fp8_ds_mla), 656 B a token: 512 values in fp8, 4
// fp32 scales, 64 rotary values in 16 bits.
bool packs_sparse_latents(const Deployment& deployment);

// What FlashMLA's sparse backend takes when its layers are made: queries put together, a packed
// cache's context turned into 16 bits and, from 0.31 on, padded queries and outputs
// (mla/flashmla_sparse.py FlashMLASparseImpl). 0 with any other backend.
Bytes sparse_mla_buffers(const Deployment& deployment);

// Tokens whose keys an indexer gathers in a pass: 8 f x max_model_len where the backend above
// gathers f x max_model_len latents (mla/indexer.py get_max_prefill_buffer_size).
std::int64_t indexed_tokens(const Deployment& deployment);
// Their keys and scales, with the radix selection's 1 MiB; 0 without an indexer.
Bytes gathered_keys(const Deployment& deployment);

}  // namespace oomcast::vllm
