// PyTorch's memory by classes: how the caching allocator's books move, without its addresses.
//
// A tensor of n bytes takes up(n, 512) of allocated memory; reserved memory grows when the cached
// bytes do not cover a request, in steps of 2 MiB (the driver's granule), and only empty_cache()
// shrinks it. Splitting and placement are not modelled here, so the cached bytes are always usable:
// reserved is a lower bound of the real one. Source: PyTorch CUDACachingAllocator (kMinBlockSize,
// kRoundLarge).
#pragma once

#include "sim/ledger/ledger.hpp"

namespace oomcast {

inline constexpr Bytes kTorchBlock{512};
inline constexpr Bytes kDriverGranule{std::int64_t{2} << 20};

class TorchPool {
 public:
  // `backing` is kSegment or kPrivatePool. The ledger must outlive the pool.
  TorchPool(Ledger& ledger, Backing backing);

  // Allocates one tensor. Returns false, and changes nothing, when the card has no room for the
  // growth (after giving back what other calls cached is the caller's matter).
  [[nodiscard]] bool allocate(Leaf leaf, Bytes bytes);
  // Frees `bytes` as rounded by allocate(): pass the same size.
  void free(Leaf leaf, Bytes bytes);
  // Returns all cached memory to the driver.
  void empty_cache();
  // Bytes the card lacks for allocating `bytes` now; 0 if it fits.
  [[nodiscard]] Bytes shortage(Bytes bytes) const;

 private:
  [[nodiscard]] Bytes growth_for(Bytes rounded) const;

  Ledger* ledger_;
  Backing backing_;
};

}  // namespace oomcast
