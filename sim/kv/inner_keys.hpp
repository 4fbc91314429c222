// What indexes of keys by their runs' first one must hold, checked alike for blocks and spans.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/kv/prefix_index.hpp"

namespace oomcast::kv {

// `inner`: all keys behind their run's first. None is there twice, and none is a first key.
template <typename Heads>
void check_inner_keys(std::vector<BlockKey> inner, const Heads& heads) {
  std::sort(inner.begin(), inner.end());
  OOMCAST_CHECK(std::adjacent_find(inner.begin(), inner.end()) == inner.end() &&
                    std::none_of(inner.begin(), inner.end(),
                                 [&](BlockKey key) { return heads.contains(key); }),
                "a key inside of a run is known twice");
}

}  // namespace oomcast::kv
