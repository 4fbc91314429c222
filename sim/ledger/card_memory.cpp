#include "sim/ledger/card_memory.hpp"

#include <fmt/format.h>

#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"

namespace oomcast {
namespace {

allocator::DeviceConfig device_of(Bytes total, int index) {
  allocator::DeviceConfig config;
  config.total = total;
  config.index = index;
  return config;
}

}  // namespace

CardMemory::CardMemory(Bytes total, int device_index, const allocator::AllocatorSettings& settings)
    : ledger_(total), allocator_(device_of(total, device_index), settings) {}

std::optional<CardMemory::Tensor> CardMemory::allocate(Leaf leaf, Bytes bytes, std::uint32_t tag) {
  const Before before = now();
  const auto block = allocator_.allocate(bytes, stream_, tag);
  post_reserved(before);
  if (!capturing_) {
    post_split(before);
  }
  if (!block) {
    message_ = allocator_.last_oom().message();
    shortage_ = allocator_.last_oom().short_by();
    note_idle();
    return std::nullopt;
  }
  Tensor tensor{*block, leaf, bytes, !capturing_ && *block != allocator::BlockHandle::kNull};
  if (tensor.booked) {
    move(Leaf::kSystemCached, leaf, bytes);
    move(Leaf::kSystemCached, Leaf::kSystemFragmentation, allocator_.block_size(*block) - bytes);
  }
  note_idle();
  return tensor;
}

void CardMemory::free(const Tensor& tensor) {
  if (tensor.block == allocator::BlockHandle::kNull) {
    return;
  }
  const Before before = now();
  if (tensor.booked) {
    move(Leaf::kSystemFragmentation, Leaf::kSystemCached,
         allocator_.block_size(tensor.block) - tensor.bytes);
    move(tensor.leaf, Leaf::kSystemCached, tensor.bytes);
  }
  allocator_.free(tensor.block);
  if (tensor.booked) {
    post_split(before);
  }
  note_idle();
}

void CardMemory::empty_cache() {
  const Before before = now();
  allocator_.empty_cache();
  post_split(before);
  post_reserved(before);
  note_idle();
}

bool CardMemory::take_outside(Leaf leaf, Backing backing, Bytes bytes) {
  const Bytes rounded = align_up(bytes, allocator::kDriverUnit);
  if (!allocator_.device().take_outside(rounded)) {
    shortage_ = rounded - ledger_.device_free();
    message_ = fmt::format(
        "CUDA error: out of memory outside PyTorch. {} wanted {}. GPU {} has a total capacity of "
        "{} "
        "of which {} is free.",
        name_of(leaf), format_bytes(rounded), allocator_.device().index(),
        format_bytes(ledger_.device_total()), format_bytes(ledger_.device_free()));
    return false;
  }
  ledger_.transfer(Account::free_of(backing), Account::cell(leaf, backing), rounded);
  return true;
}

void CardMemory::return_outside(Leaf leaf, Backing backing, Bytes bytes) {
  const Bytes rounded = align_up(bytes, allocator::kDriverUnit);
  allocator_.device().return_outside(rounded);
  ledger_.transfer(Account::cell(leaf, backing), Account::free_of(backing), rounded);
}

bool CardMemory::correct_outside(Leaf leaf, Backing backing, Bytes more) {
  if (more >= Bytes{0}) {
    return take_outside(leaf, backing, more);
  }
  return_outside(leaf, backing, std::min(-more, ledger_.at(leaf, backing)));
  return true;
}

void CardMemory::use_stream(allocator::StreamId stream) {
  stream_ = stream;
  allocator_.set_current_stream(stream);
}

void CardMemory::begin_capture(bool empties_cache) {
  if (empties_cache) {
    empty_cache();
  }
  allocator_.begin_pool(pool_, std::nullopt);  // streams that the captured one forks included
  allocator_.begin_capture(stream_);
  capturing_ = true;
  ++captures_;
}

void CardMemory::end_capture() {
  allocator_.end_capture(stream_);
  allocator_.end_pool(pool_);
  allocator_.set_current_stream(stream_);
  capturing_ = false;
}

void CardMemory::release_graphs() {
  const Bytes held = ledger_.at(Leaf::kGraphPool, Backing::kPrivatePool);
  ledger_.transfer(Account::cell(Leaf::kGraphPool, Backing::kPrivatePool),
                   Account::free_of(Backing::kPrivatePool), held);
  ledger_.transfer(Account::free_of(Backing::kSegment),
                   Account::cell(Leaf::kSystemCached, Backing::kSegment), held);
  for (; captures_ > 0; --captures_) {
    allocator_.release_pool(pool_);
  }
  pool_ = allocator::PoolId{static_cast<std::int64_t>(pool_) + 1};
  note_idle();
}

void CardMemory::post_reserved(const Before& before) {
  const Bytes change = allocator_.stats().reserved - before.stats.reserved;
  const Backing backing = capturing_ ? Backing::kPrivatePool : Backing::kSegment;
  const Leaf leaf = capturing_ ? Leaf::kGraphPool : Leaf::kSystemCached;
  post_taken(leaf, backing, change);
  // The driver rounds a segment up to its unit; PyTorch does not count that.
  const Bytes taken = allocator_.device().used() - before.device_used;
  post_taken(Leaf::kSystemFragmentation, Backing::kDriver, taken - change);
}

// `change` bytes more (or fewer, if negative) come from the card's free memory.
void CardMemory::post_taken(Leaf leaf, Backing backing, Bytes change) {
  if (change > Bytes{0}) {
    ledger_.transfer(Account::free_of(backing), Account::cell(leaf, backing), change);
  } else if (change < Bytes{0}) {
    ledger_.transfer(Account::cell(leaf, backing), Account::free_of(backing), -change);
  }
}

void CardMemory::post_split(const Before& before) {
  const Bytes change = allocator_.stats().inactive_split - before.stats.inactive_split;
  if (change > Bytes{0}) {
    move(Leaf::kSystemCached, Leaf::kSystemFragmentation, change);
  } else if (change < Bytes{0}) {
    move(Leaf::kSystemFragmentation, Leaf::kSystemCached, -change);
  }
}

void CardMemory::move(Leaf from, Leaf to, Bytes bytes) {
  ledger_.transfer(Account::cell(from, Backing::kSegment), Account::cell(to, Backing::kSegment),
                   bytes);
}

void CardMemory::note_idle() {
  OOMCAST_CHECK(ledger_.device_free() == allocator_.device().free(),
                "the books have {} B free, the driver {} B", ledger_.device_free().count(),
                allocator_.device().free().count());
  const allocator::AllocatorStats& stats = allocator_.stats();
  const Bytes cached = ledger_.at(Leaf::kSystemCached, Backing::kSegment) - foreign_cached_;
  ledger_.set_torch_idle(stats.reserved - stats.allocated - cached + foreign_idle_);
}

CardMemory::Sums operator-(const CardMemory::Sums& after, const CardMemory::Sums& before) {
  CardMemory::Sums change = after;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    for (std::size_t backing = 0; backing < kBackingCount; ++backing) {
      change.cells[leaf][backing] -= before.cells[leaf][backing];
    }
  }
  change.torch_idle -= before.torch_idle;
  return change;
}

CardMemory::Sums CardMemory::sums() const {
  Sums now;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    for (std::size_t backing = 0; backing < kBackingCount; ++backing) {
      now.cells[leaf][backing] = ledger_.at(static_cast<Leaf>(leaf), static_cast<Backing>(backing));
    }
  }
  now.torch_idle = ledger_.torch_idle();
  return now;
}

void CardMemory::add(const Sums& change) {
  const Bytes before = ledger_.device_free();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    for (std::size_t backing = 0; backing < kBackingCount; ++backing) {
      post_taken(static_cast<Leaf>(leaf), static_cast<Backing>(backing),
                 change.cells[leaf][backing]);
    }
  }
  const Bytes taken = before - ledger_.device_free();
  if (taken < Bytes{0}) {
    allocator_.device().return_outside(-taken);
  } else {
    OOMCAST_CHECK(allocator_.device().take_outside(taken), "no room for {} B known from before",
                  taken.count());
  }
  foreign_idle_ += change.torch_idle;
  foreign_cached_ += change.cells[index_of(Leaf::kSystemCached)][index_of(Backing::kSegment)];
  note_idle();
}

}  // namespace oomcast
