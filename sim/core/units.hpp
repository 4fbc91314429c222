// Strong integer quantities: a byte count cannot become a token count by accident.
//
// Glossary
//   Bytes   memory size; GiB = 2^30, MiB = 2^20 throughout.
//   Tokens  tokens of prompt, output or KV cache.
//   Blocks  KV cache blocks (pages) of one pool.
//   Nanos   span of simulated time; SimTime is an instant on the same axis, counted from time 0.
//
// Arithmetic is 64-bit signed and checked: a result that does not fit throws ArithmeticOverflow,
// which the program reports as a size in the input that is too large. Two different quantities
// never mix, and nothing converts to or from a plain integer without saying so (`Bytes{n}`,
// `x.count()`).
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <stdexcept>

namespace oomcast {

struct ArithmeticOverflow : std::overflow_error {
  using std::overflow_error::overflow_error;
};

namespace detail {
[[noreturn]] void throw_overflow(const char* operation, std::int64_t left, std::int64_t right);

constexpr std::int64_t checked_add(std::int64_t left, std::int64_t right) {
  std::int64_t out = 0;
  if (__builtin_add_overflow(left, right, &out)) {
    throw_overflow("+", left, right);
  }
  return out;
}
constexpr std::int64_t checked_sub(std::int64_t left, std::int64_t right) {
  std::int64_t out = 0;
  if (__builtin_sub_overflow(left, right, &out)) {
    throw_overflow("-", left, right);
  }
  return out;
}
constexpr std::int64_t checked_mul(std::int64_t left, std::int64_t right) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(left, right, &out)) {
    throw_overflow("*", left, right);
  }
  return out;
}
}  // namespace detail

// The next multiple of `step` at or above `value`; both non-negative, step > 0.
constexpr std::int64_t div_ceil(std::int64_t value, std::int64_t step) {
  return value / step + (value % step != 0 ? 1 : 0);
}
constexpr std::int64_t align_up(std::int64_t value, std::int64_t step) {
  return detail::checked_mul(div_ceil(value, step), step);
}

template <typename Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  template <std::integral Int>
    requires(!std::same_as<Int, bool>)
  explicit constexpr Quantity(Int count) : count_(static_cast<std::int64_t>(count)) {
    if constexpr (std::unsigned_integral<Int> && sizeof(Int) == sizeof(std::int64_t)) {
      if (count_ < 0) {
        detail::throw_overflow("from unsigned", count_, 0);
      }
    }
  }

  [[nodiscard]] constexpr std::int64_t count() const { return count_; }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;

  constexpr Quantity& operator+=(Quantity other) {
    count_ = detail::checked_add(count_, other.count_);
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    count_ = detail::checked_sub(count_, other.count_);
    return *this;
  }
  friend constexpr Quantity operator+(Quantity left, Quantity right) { return left += right; }
  friend constexpr Quantity operator-(Quantity left, Quantity right) { return left -= right; }
  friend constexpr Quantity operator-(Quantity value) { return Quantity{} - value; }

  template <std::integral Int>
    requires(!std::same_as<Int, bool>)
  friend constexpr Quantity operator*(Quantity left, Int right) {
    return Quantity{detail::checked_mul(left.count_, static_cast<std::int64_t>(right))};
  }
  template <std::integral Int>
    requires(!std::same_as<Int, bool>)
  friend constexpr Quantity operator*(Int left, Quantity right) {
    return right * left;
  }

 private:
  std::int64_t count_ = 0;
};

// How many whole `right` lie in `left` (truncating), and how many cover it.
template <typename Tag>
constexpr std::int64_t operator/(Quantity<Tag> left, Quantity<Tag> right) {
  return left.count() / right.count();
}
template <typename Tag>
constexpr std::int64_t div_ceil(Quantity<Tag> left, Quantity<Tag> right) {
  return div_ceil(left.count(), right.count());
}
template <typename Tag>
constexpr Quantity<Tag> align_up(Quantity<Tag> value, Quantity<Tag> step) {
  return Quantity<Tag>{align_up(value.count(), step.count())};
}

using Bytes = Quantity<struct BytesTag>;
using Tokens = Quantity<struct TokensTag>;
using Blocks = Quantity<struct BlocksTag>;
using Nanos = Quantity<struct NanosTag>;

inline constexpr Bytes kKiB{std::int64_t{1} << 10};
inline constexpr Bytes kMiB{std::int64_t{1} << 20};
inline constexpr Bytes kGiB{std::int64_t{1} << 30};

inline constexpr Nanos kSecond{1'000'000'000};

// An instant. Instants are compared and subtracted; only a span moves them.
class SimTime {
 public:
  constexpr SimTime() = default;
  explicit constexpr SimTime(Nanos since_start) : since_start_(since_start) {}

  [[nodiscard]] constexpr Nanos since_start() const { return since_start_; }
  [[nodiscard]] constexpr double seconds() const {
    return static_cast<double>(since_start_.count()) * 1e-9;
  }

  friend constexpr auto operator<=>(SimTime, SimTime) = default;
  friend constexpr SimTime operator+(SimTime at, Nanos span) {
    return SimTime{at.since_start_ + span};
  }
  friend constexpr Nanos operator-(SimTime left, SimTime right) {
    return left.since_start_ - right.since_start_;
  }

 private:
  Nanos since_start_;
};

constexpr double to_gib(Bytes bytes) {
  return static_cast<double>(bytes.count()) / static_cast<double>(kGiB.count());
}
constexpr double to_mib(Bytes bytes) {
  return static_cast<double>(bytes.count()) / static_cast<double>(kMiB.count());
}

}  // namespace oomcast
