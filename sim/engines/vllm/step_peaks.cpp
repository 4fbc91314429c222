#include "sim/engines/vllm/step_peaks.hpp"

#include <algorithm>
#include <numeric>

#include "sim/core/error.hpp"

namespace oomcast::vllm {
namespace {

std::size_t slot_of(Leaf leaf) {
  const auto& leaves = StepPeaks::kLeaves;
  const auto* at = std::find(leaves.begin(), leaves.end(), leaf);
  OOMCAST_CHECK(at != leaves.end(), "{} is no leaf of a step", name_of(leaf));
  return static_cast<std::size_t>(at - leaves.begin());
}

StepPeaks::Sizes by_leaf(const LiveSet& set) {
  StepPeaks::Sizes sizes{};
  for (const LiveTensor& tensor : set.tensors) {
    sizes[slot_of(tensor.leaf)] += tensor.bytes;
  }
  return sizes;
}

StepPeaks::Sizes minus(StepPeaks::Sizes left, const StepPeaks::Sizes& right) {
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i] -= right[i];
  }
  return left;
}

Bytes sum(const StepPeaks::Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Bytes{});
}

}  // namespace

StepPeaks::StepPeaks(const Deployment& deployment, StageRole role) {
  // The functions go through the origin, so their slopes are the sizes at one token and one row;
  // two rows keep half-size tensors whole.
  const double units = serving_sampler_units(deployment);
  forward_.per_token = by_leaf(forward_live_set(deployment, role, Tokens{1}));
  const Sizes one = by_leaf(sampler_live_set(deployment, role, Tokens{1}, 1, units));
  sampler_.per_row = minus(by_leaf(sampler_live_set(deployment, role, Tokens{1}, 2, units)), one);
  sampler_.per_token = minus(one, sampler_.per_row);
  if (!deployment.capture_sizes.empty()) {
    captured_ = Tokens{deployment.capture_sizes.back()};
  }
}

StepPeaks::Sizes StepPeaks::at(Tokens tokens, std::int64_t rows) const {
  const auto evaluate = [&](const Moment& moment) {
    Sizes sizes{};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = moment.per_token[i] * tokens.count() + moment.per_row[i] * rows;
    }
    return sizes;
  };
  const Sizes sampling = rows > 0 ? evaluate(sampler_) : Sizes{};
  const Sizes passing = tokens > captured_ ? evaluate(forward_) : Sizes{};
  return sum(passing) >= sum(sampling) ? passing : sampling;
}

}  // namespace oomcast::vllm
