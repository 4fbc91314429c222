// Simulated time below the nanosecond, exact: step times are sums of many small terms, and jumping
// over n steps must give the very instant that n single steps give. Spans are integers of
// 2^-20 ns in 128 bits, so adding is associative; an instant is floored to nanoseconds only where
// it is shown.
#pragma once

#include <compare>
#include <cstdint>

#include "sim/core/units.hpp"

namespace oomcast {

class FineSpan {
 public:
  __extension__ using Ticks = __int128;
  static constexpr int kFractionBits = 20;

  constexpr FineSpan() = default;
  explicit constexpr FineSpan(Nanos span) : ticks_(Ticks{span.count()} << kFractionBits) {}
  // Rounded once, to the nearest tick. `nanos` is finite and in [0, 9e18].
  static FineSpan from_nanos(double nanos);
  static constexpr FineSpan from_ticks(Ticks ticks) {
    FineSpan span;
    span.ticks_ = ticks;
    return span;
  }

  [[nodiscard]] constexpr Ticks ticks() const { return ticks_; }
  // Whole nanoseconds, rounded down.
  [[nodiscard]] constexpr Nanos floor() const {
    return Nanos{static_cast<std::int64_t>(ticks_ >> kFractionBits)};
  }

  friend constexpr auto operator<=>(const FineSpan&, const FineSpan&) = default;
  friend constexpr FineSpan operator+(FineSpan left, FineSpan right) {
    return from_ticks(left.ticks_ + right.ticks_);
  }
  friend constexpr FineSpan operator-(FineSpan left, FineSpan right) {
    return from_ticks(left.ticks_ - right.ticks_);
  }
  friend constexpr FineSpan operator*(FineSpan span, std::int64_t factor) {
    return from_ticks(span.ticks_ * factor);
  }

 private:
  Ticks ticks_ = 0;
};

}  // namespace oomcast
