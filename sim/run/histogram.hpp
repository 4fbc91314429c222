// Percentiles of non-negative integers in fixed memory: logarithmic bins of 1/128 relative width
// (HDR-style), so a percentile is within 0.8 % of the exact one however long the run.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "sim/core/error.hpp"

namespace oomcast {

class LogHistogram {
 public:
  LogHistogram() : bins_(kBins) {}

  void add(std::int64_t value) {
    OOMCAST_CHECK(value >= 0, "a histogram value of {}", value);
    ++bins_[bin_of(static_cast<std::uint64_t>(value))];
    ++count_;
    sum_ += static_cast<double>(value);
    largest_ = value > largest_ ? value : largest_;
  }

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] double mean() const {
    return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_);
  }
  [[nodiscard]] std::int64_t largest() const { return largest_; }
  // Value at quantile `q` in (0, 1]: the middle of the bin of the ceil(q * count)-th smallest,
  // never above the largest value seen. 0 when empty.
  [[nodiscard]] std::int64_t quantile(double q) const {
    const auto rank = static_cast<std::int64_t>(q * static_cast<double>(count_) + 0.999999);
    if (rank >= count_) {
      return largest_;
    }
    std::int64_t seen = 0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      seen += bins_[bin];
      if (seen >= rank && seen > 0) {
        const std::int64_t middle = middle_of(bin);
        return middle < largest_ ? middle : largest_;
      }
    }
    return largest_;
  }

 private:
  static constexpr int kSubBits = 7;
  static constexpr std::size_t kSub = std::size_t{1} << kSubBits;
  static constexpr std::size_t kBins = kSub * (64 - kSubBits);

  static std::size_t bin_of(std::uint64_t value) {
    if (value < kSub) {
      return static_cast<std::size_t>(value);
    }
    const int shift = static_cast<int>(std::bit_width(value)) - kSubBits - 1;
    return (static_cast<std::size_t>(shift) << kSubBits) + static_cast<std::size_t>(value >> shift);
  }
  static std::int64_t middle_of(std::size_t bin) {
    if (bin < 2 * kSub) {
      return static_cast<std::int64_t>(bin);
    }
    const std::size_t shift = (bin >> kSubBits) - 1;
    const std::size_t base = bin - (shift << kSubBits);
    return static_cast<std::int64_t>((base << shift) + ((std::size_t{1} << shift) >> 1));
  }

  std::vector<std::int64_t> bins_;
  std::int64_t count_ = 0;
  double sum_ = 0;
  std::int64_t largest_ = 0;
};

}  // namespace oomcast
