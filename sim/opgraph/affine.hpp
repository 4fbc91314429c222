// Bytes as an affine function of a step's shape: every tensor of a step is a fixed size plus so
// many bytes per token, per scheduled request and per row of logits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/core/units.hpp"

namespace oomcast::opgraph {

// What a step's tensors can depend on.
enum class ShapeVar : std::uint8_t {
  kTokens,    // scheduled tokens, padding included where the engine pads
  kRequests,  // requests scheduled
  kRows,      // rows of logits: requests that sample, drafts to verify, prompt logprobs
};
inline constexpr std::size_t kShapeVars = 3;

struct StepShape {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t rows = 0;

  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// constant + sum of slope[v] x shape[v]; all coefficients >= 0.
struct Affine {
  Bytes constant;
  std::array<Bytes, kShapeVars> slope{};

  static Affine fixed(Bytes bytes) { return {bytes, {}}; }
  static Affine per(ShapeVar var, Bytes bytes) {
    Affine out;
    out.slope[static_cast<std::size_t>(var)] = bytes;
    return out;
  }

  // Throws ArithmeticOverflow.
  [[nodiscard]] Bytes at(const StepShape& shape) const {
    return constant + slope[0] * shape.tokens + slope[1] * shape.requests + slope[2] * shape.rows;
  }
  // Nowhere smaller than `other`, for any shape.
  [[nodiscard]] bool covers(const Affine& other) const {
    return constant >= other.constant && slope[0] >= other.slope[0] && slope[1] >= other.slope[1] &&
           slope[2] >= other.slope[2];
  }

  Affine& operator+=(const Affine& other) {
    constant += other.constant;
    for (std::size_t i = 0; i < kShapeVars; ++i) {
      slope[i] += other.slope[i];
    }
    return *this;
  }
  Affine& operator-=(const Affine& other) {
    constant -= other.constant;
    for (std::size_t i = 0; i < kShapeVars; ++i) {
      slope[i] -= other.slope[i];
    }
    return *this;
  }
  friend Affine operator+(Affine left, const Affine& right) { return left += right; }
  friend bool operator==(const Affine&, const Affine&) = default;
};

}  // namespace oomcast::opgraph
