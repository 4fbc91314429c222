// State-space mixers: Mamba 2 (vLLM mamba_mixer2) and Mamba 1 as Jamba has it.
#pragma once

#include "models/families/family.hpp"

namespace oomcast::models {

struct Mamba2Sizes {
  std::int64_t heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t groups = 1;
  std::int64_t state = 1;
  std::int64_t kernel = 4;
  bool conv_bias = true;
  bool projection_bias = false;
  bool norm = true;
  std::optional<DType> state_dtype;
};

// Tensors of the mixer, named "mixer.…", and the state it keeps.
void add_mamba2(const ModelSpec& spec, std::vector<TensorSpec>& tensors, AttentionSpec& attention,
                const Mamba2Sizes& sizes);

struct Mamba1Sizes {
  std::int64_t inner = 1;
  std::int64_t state = 16;
  std::int64_t step_rank = 1;
  std::int64_t kernel = 4;
  bool conv_bias = true;
  bool projection_bias = false;
};
void add_mamba1(const ModelSpec& spec, std::vector<TensorSpec>& tensors, AttentionSpec& attention,
                const Mamba1Sizes& sizes);

// mamba_ssm_cache_dtype, mamba_ssm_dtype: the recurrent state's dtype where the config asks for
// one.
std::optional<DType> read_state_dtype(const Config& config);

}  // namespace oomcast::models
