// The memory of one card as an engine's process sees it: PyTorch's allocator, exact to the address,
// over the driver, with every change kept in the ledger's books by leaf and backing.
//
// A tensor's own bytes are its leaf's. What a block holds beyond its tensor, and free parts of
// segments in use, is `system.fragmentation`; other memory that PyTorch keeps is `system.cached`.
// The private pool of CUDA graphs is `graph.pool` as a whole: nobody else can use what is free in
// it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/ledger/ledger.hpp"

namespace oomcast {

class CardMemory {
 public:
  // A card of `total` bytes with nothing in use.
  CardMemory(Bytes total, int device_index, const allocator::AllocatorSettings& settings);

  struct Tensor {
    allocator::BlockHandle block = allocator::BlockHandle::kNull;
    Leaf leaf = Leaf::kRuntimeActivations;
    Bytes bytes;
    bool booked = false;  // under its leaf; not so inside the graphs' pool
  };

  // Empty when memory ran out: message() and shortage() then describe it. `tag` is the allocator's.
  [[nodiscard]] std::optional<Tensor> allocate(Leaf leaf, Bytes bytes, std::uint32_t tag = 0);
  void free(const Tensor& tensor);
  void empty_cache();

  // Memory past PyTorch (cudaMalloc by a library, the context), in units of the driver; false if
  // the card has no room for it: message() and shortage() then tell.
  [[nodiscard]] bool take_outside(Leaf leaf, Backing backing, Bytes bytes);
  void return_outside(Leaf leaf, Backing backing, Bytes bytes);
  // Takes `more`; where it is negative, returns as much of what is held there.
  [[nodiscard]] bool correct_outside(Leaf leaf, Backing backing, Bytes more);

  // Work goes to this stream from now on; blocks freed on another are not for it.
  void use_stream(allocator::StreamId stream);

  // From begin_capture() to end_capture() allocations go to the graphs' private pool. As
  // torch.cuda.graph does, unless told otherwise, the cache is emptied first.
  void begin_capture(bool empties_cache = true);
  void end_capture();
  // The graphs captured so far are gone: their pool's memory is cached and can be returned.
  void release_graphs();

  // What is in use, as sums.
  struct Sums {
    std::array<std::array<Bytes, kBackingCount>, kLeafCount> cells{};
    Bytes torch_idle;

    friend Sums operator-(const Sums& after, const Sums& before);
  };
  [[nodiscard]] Sums sums() const;
  // Books a change that is known from another card, without its blocks: PyTorch's allocator does
  // not see it, the driver and the ledger do. There must be room.
  void add(const Sums& change);

  // Of what failed last: for an allocation PyTorch's own text; and what the card lacked.
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] Bytes shortage() const { return shortage_; }

  [[nodiscard]] Ledger& ledger() { return ledger_; }
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  [[nodiscard]] allocator::CachingAllocator& torch() { return allocator_; }
  [[nodiscard]] const allocator::CachingAllocator& torch() const { return allocator_; }

 private:
  // What the allocator and the driver held before a call.
  struct Before {
    allocator::AllocatorStats stats;
    Bytes device_used;
  };
  [[nodiscard]] Before now() const { return {allocator_.stats(), allocator_.device().used()}; }

  void post_reserved(const Before& before);
  void post_taken(Leaf leaf, Backing backing, Bytes change);
  void post_split(const Before& before);
  void move(Leaf from, Leaf to, Bytes bytes);
  void note_idle();

  Ledger ledger_;
  allocator::CachingAllocator allocator_;
  allocator::StreamId stream_ = allocator::StreamId::kDefault;
  allocator::PoolId pool_ = allocator::PoolId{1};
  bool capturing_ = false;
  int captures_ = 0;    // uses that the pool has beyond the first
  Bytes foreign_idle_;  // of changes that were added
  Bytes foreign_cached_;
  std::string message_;
  Bytes shortage_;
};

}  // namespace oomcast
