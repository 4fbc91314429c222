// Who answers for the KV of requests that two servers share: each token's KV is in exactly one hand
// from the moment it is computed for the other side until its request ends.
//
//   computed ──> kPrefill ──> kFlight ──> kDecode ──> gone (or from any of them, when it fails)
//
// In life both servers keep a copy while it is under way; the pools' books show those.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/core/units.hpp"

namespace oomcast::cluster {

enum class Hand : std::uint8_t { kPrefill, kFlight, kDecode };
inline constexpr std::size_t kHands = 3;

// Of one request.
using KvShares = std::array<Tokens, kHands>;

class KvCustody {
 public:
  // KV that the prefill side has made.
  void compute(KvShares& shares, Tokens tokens);
  // Aborts if `from` has less.
  void pass(KvShares& shares, Hand from, Hand to, Tokens tokens);
  // So much is not needed: the other side has it already.
  void drop(KvShares& shares, Hand hand, Tokens tokens);
  // The request has ended, or begins anew.
  void release(KvShares& shares);

  [[nodiscard]] Tokens at(Hand hand) const { return sums_[static_cast<std::size_t>(hand)]; }
  [[nodiscard]] Tokens computed() const { return computed_; }
  [[nodiscard]] Tokens gone() const { return gone_; }
  // Aborts unless what was computed is in a hand or gone, and nothing twice.
  void audit() const;

 private:
  std::array<Tokens, kHands> sums_{};
  Tokens computed_;
  Tokens gone_;
};

}  // namespace oomcast::cluster
