// Double-entry book of one GPU's memory (and of the host memory pinned for it).
//
// Each byte of the card is in exactly one account: free, or a (leaf, backing) cell. A posting moves
// bytes from one account to another, so the card's total never changes; after each posting the
// ledger compares two sums that were kept apart (the cells' own and the free account's) and aborts
// on a difference. Nothing is created or lost by a posting to one side only, because there is no
// such call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sim/core/units.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast {

// A (leaf, backing) cell, or the free memory that a backing draws from when `leaf` is empty.
struct Account {
  std::optional<Leaf> leaf;
  Backing backing = Backing::kDriver;

  static constexpr Account free_of(Backing backing) { return {std::nullopt, backing}; }
  static constexpr Account cell(Leaf leaf, Backing backing) { return {leaf, backing}; }
};

using LeafBytes = std::array<Bytes, kLeafCount>;

// What other tools show of the same books.
struct MemoryViews {
  Bytes torch_allocated;  // torch.cuda.memory_allocated: blocks of live tensors
  Bytes torch_reserved;   // torch.cuda.memory_reserved: all torch cells
  Bytes device_used;      // total - cudaMemGetInfo's free; NVML's `used` of this process's view
  Bytes pinned_host;
};

// A peak is worthless without its witness: what lived at that moment.
struct Peak {
  Bytes bytes;
  SimTime at;
  LeafBytes live{};  // device bytes by leaf at the earliest instant of the peak
  std::string during;
};

class Ledger {
 public:
  // `device_total` as cudaMemGetInfo shows it, > 0. The books start with everything free.
  explicit Ledger(Bytes device_total);

  // Moves `amount` >= 0 from one account to another. Free device memory may go negative: that is
  // the simulated out-of-memory, which the caller finds with `device_free()`; a cell may not.
  // Moves between host and device are refused: bytes do not change the place they lie in.
  void transfer(Account from, Account to, Bytes amount);

  // The cells of these leaves come to hold these amounts; the cell of `counter`, another one, gives
  // or takes the difference. One posting with many legs, between cells of PyTorch's memory.
  void settle(std::span<const Leaf> leaves, std::span<const Bytes> amounts, Leaf counter,
              Backing backing);

  // Torch cells hold `idle` bytes, cached blocks aside, that are in no live tensor's block: free
  // parts of segments in use and of the graphs' pool.
  void set_torch_idle(Bytes idle) { torch_idle_ = idle; }
  [[nodiscard]] Bytes torch_idle() const { return torch_idle_; }

  [[nodiscard]] Bytes device_total() const { return total_; }
  [[nodiscard]] Bytes device_free() const { return device_free_; }
  [[nodiscard]] Bytes at(Leaf leaf, Backing backing) const {
    return cells_[index_of(leaf)][index_of(backing)];
  }
  // Device bytes of each leaf over all device backings.
  [[nodiscard]] const LeafBytes& device_by_leaf() const { return device_by_leaf_; }
  [[nodiscard]] MemoryViews views() const;

  // Compares every kept sum with a recount from the cells. Aborts on a difference.
  void audit() const;

  // Multi-line table of all non-zero cells, for reports and aborts.
  [[nodiscard]] std::string table() const;

 private:
  void apply(Account account, Bytes delta);

  Bytes total_;
  Bytes device_free_;
  Bytes device_used_;
  Bytes torch_reserved_;
  Bytes torch_cached_;
  Bytes torch_idle_;
  Bytes pinned_host_;
  Bytes host_free_change_;
  std::array<std::array<Bytes, kBackingCount>, kLeafCount> cells_{};
  LeafBytes device_by_leaf_{};
};

// Largest use seen, for the device as a whole and for each leaf, with witness.
class PeakTracker {
 public:
  // Call after a change; `during` is copied only when a new peak is set. `extra` as stated by the
  // caller (e.g. step shape).
  void observe(const Ledger& ledger, SimTime at, std::string_view during);
  // The same where only these leaves can hold more than at the last call.
  void observe(const Ledger& ledger, SimTime at, std::string_view during,
               std::span<const Leaf> changed);

  [[nodiscard]] const Peak& device() const { return device_; }
  [[nodiscard]] const Peak& of(Leaf leaf) const { return leaves_[index_of(leaf)]; }

 private:
  void observe(const Ledger& ledger, SimTime at, std::string_view during, std::size_t leaf);

  Peak device_;
  std::array<Peak, kLeafCount> leaves_;
};

}  // namespace oomcast
