// Weights that a kernel wants in another layout are copied once they are loaded, layer by layer;
// what the originals leave between live tensors counts as weights in SGLang's log.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/weights.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/load.hpp"

namespace oomcast::sglang {

class LoadTape {
 public:
  std::uint32_t add(Bytes bytes, Leaf leaf) {
    steps_.push_back({LoadStep::Kind::kAllocate, next_, bytes, leaf});
    return next_++;
  }
  void free(std::uint32_t tensor) {
    steps_.push_back({LoadStep::Kind::kFree, tensor, {}, Leaf::kModelWeights});
  }
  void empty_cache() {
    steps_.push_back({LoadStep::Kind::kEmptyCache, 0, {}, Leaf::kModelWeights});
  }
  std::vector<LoadStep> take() { return std::move(steps_); }

 private:
  std::vector<LoadStep> steps_;
  std::uint32_t next_ = 0;
};

struct LoadedTensor {
  std::uint32_t tensor = 0;
  const models::TensorBytes* source = nullptr;
  Bytes bytes = {};
  std::optional<std::uint32_t> unused = std::nullopt;  // created with it, dropped by the repacking
  Bytes reordered = {};                                // of NVFP4 scales in Blackwell's order
};

// Zero points that symmetric GPTQ creates beside `scale` for the checkpoint alone; 0: none.
Bytes unused_zero_points(const Deployment& deployment, const models::TensorBytes& scale);

// A copy of NVFP4 experts' scales in Blackwell's order, made with them by way of a padded one
// (layers/quantization/modelopt_quant.py); 0: none. Marlin's kernels do not read it and it stays;
// on consumer cards loading drops it.
Bytes reordered_scales(const Deployment& deployment, int stage, const models::TensorBytes& scale);
bool reorders_scales(const Deployment& deployment);

void repack_weights(const Deployment& deployment, int stage, LoadTape& tape,
                    std::vector<LoadedTensor>& tensors);

}  // namespace oomcast::sglang
