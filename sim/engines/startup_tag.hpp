// Tags of allocations, which come back in traces and snapshots: those of a startup say the phase
// and the leaf.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "sim/ledger/classes.hpp"

namespace oomcast {

inline constexpr std::array<std::string_view, 8> kStartupPhases = {
    "context", "communicators", "load", "profile", "kv", "capture", "warmup", "ready"};

// Tags from here on are not the startup's; 0 is no tag.
inline constexpr std::uint32_t kFirstStepTag = 1 + kStartupPhases.size() * kLeafCount;

// `phase` is one of kStartupPhases.
constexpr std::uint32_t startup_tag(std::string_view phase, Leaf leaf) {
  const auto* const found = std::find(kStartupPhases.begin(), kStartupPhases.end(), phase);
  const auto index = static_cast<std::size_t>(found - kStartupPhases.begin());
  return static_cast<std::uint32_t>(1 + index * kLeafCount + index_of(leaf));
}
constexpr std::string_view startup_phase(std::uint32_t tag) {
  return kStartupPhases[(tag - 1) / kLeafCount];
}
constexpr Leaf startup_leaf(std::uint32_t tag) { return static_cast<Leaf>((tag - 1) % kLeafCount); }

}  // namespace oomcast
