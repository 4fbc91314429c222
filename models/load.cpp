#include "models/load.hpp"

namespace oomcast::models {
namespace {

class Sequence {
 public:
  std::uint32_t allocate(Bytes bytes, WeightLeaf leaf) {
    calls_.push_back({LoadCall::Kind::kAllocate, next_, bytes, leaf});
    return next_++;
  }
  void free(std::uint32_t tensor) { calls_.push_back({LoadCall::Kind::kFree, tensor, {}, {}}); }
  std::vector<LoadCall> take() { return std::move(calls_); }

 private:
  std::vector<LoadCall> calls_;
  std::uint32_t next_ = 0;
};

void allocate_rope_table(Sequence& calls, const TensorBytes& table) {
  const std::int64_t elements = table.bytes.count() * 8 / bits_of(table.dtype);
  const Bytes half = bytes_of(DType::kFloat32, elements / 2);
  const std::uint32_t angles = calls.allocate(half, table.leaf);
  const std::uint32_t cosines = calls.allocate(half, table.leaf);
  const std::uint32_t sines = calls.allocate(half, table.leaf);
  const std::uint32_t both = calls.allocate(half * 2, table.leaf);
  calls.free(sines);
  calls.free(cosines);
  calls.free(angles);
  if (table.dtype == DType::kFloat32) {
    return;  // nothing to convert: this is the table
  }
  calls.allocate(table.bytes, table.leaf);
  calls.free(both);
}

}  // namespace

std::vector<LoadCall> load_sequence(const RankWeights& weights) {
  Sequence calls;
  for (const TensorBytes& tensor : weights.tensors) {
    if (tensor.rope_table) {
      allocate_rope_table(calls, tensor);
    } else {
      calls.allocate(tensor.bytes, tensor.leaf);
    }
  }
  return calls.take();
}

}  // namespace oomcast::models
