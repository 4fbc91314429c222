#include "sim/ledger/ledger.hpp"

#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"

namespace oomcast {

Ledger::Ledger(Bytes device_total) : total_(device_total), device_free_(device_total) {
  OOMCAST_CHECK(device_total > Bytes{0}, "device total is {}", device_total.count());
}

void Ledger::transfer(Account from, Account to, Bytes amount) {
  OOMCAST_CHECK(amount >= Bytes{0}, "a transfer of {} bytes", amount.count());
  OOMCAST_CHECK(is_host(from.backing) == is_host(to.backing), "bytes cannot move between {} and {}",
                name_of(from.backing), name_of(to.backing));
  apply(from, -amount);
  apply(to, amount);
  OOMCAST_CHECK(device_used_ + device_free_ == total_, "used {} + free {} != total {}\n{}",
                device_used_.count(), device_free_.count(), total_.count(), table());
  OOMCAST_CHECK(pinned_host_ + host_free_change_ == Bytes{0}, "pinned {} but host gave {}",
                pinned_host_.count(), -host_free_change_.count());
}

void Ledger::settle(std::span<const Leaf> leaves, std::span<const Bytes> amounts, Leaf counter,
                    Backing backing) {
  OOMCAST_CHECK(is_torch(backing) && leaves.size() == amounts.size(),
                "{} amounts for {} leaves in {}", amounts.size(), leaves.size(), name_of(backing));
  Bytes taken;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    OOMCAST_CHECK(amounts[i] >= Bytes{0} && leaves[i] != counter, "{} x {} would hold {} bytes",
                  name_of(leaves[i]), name_of(backing), amounts[i].count());
    Bytes& cell = cells_[index_of(leaves[i])][index_of(backing)];
    const Bytes more = amounts[i] - cell;
    cell = amounts[i];
    device_by_leaf_[index_of(leaves[i])] += more;
    taken += more;
  }
  Bytes& from = cells_[index_of(counter)][index_of(backing)];
  from -= taken;
  device_by_leaf_[index_of(counter)] -= taken;
  if (counter == Leaf::kSystemCached) {
    torch_cached_ -= taken;
  }
  OOMCAST_CHECK(from >= Bytes{0}, "{} x {} would hold {} bytes", name_of(counter), name_of(backing),
                from.count());
}

void Ledger::apply(Account account, Bytes delta) {
  if (!account.leaf) {
    (is_host(account.backing) ? host_free_change_ : device_free_) += delta;
    return;
  }
  Bytes& cell = cells_[index_of(*account.leaf)][index_of(account.backing)];
  cell += delta;
  OOMCAST_CHECK(cell >= Bytes{0}, "{} x {} would hold {} bytes", name_of(*account.leaf),
                name_of(account.backing), cell.count());
  if (is_host(account.backing)) {
    pinned_host_ += delta;
    return;
  }
  device_used_ += delta;
  device_by_leaf_[index_of(*account.leaf)] += delta;
  if (is_torch(account.backing)) {
    torch_reserved_ += delta;
    if (*account.leaf == Leaf::kSystemCached) {
      torch_cached_ += delta;
    }
  }
}

MemoryViews Ledger::views() const {
  return {torch_reserved_ - torch_cached_ - torch_idle_, torch_reserved_, device_used_,
          pinned_host_};
}

void Ledger::audit() const {
  Bytes device;
  Bytes torch;
  Bytes host;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    Bytes of_leaf;
    for (std::size_t backing = 0; backing < kBackingCount; ++backing) {
      const Bytes cell = cells_[leaf][backing];
      const auto where = static_cast<Backing>(backing);
      if (is_host(where)) {
        host += cell;
        continue;
      }
      of_leaf += cell;
      torch += is_torch(where) ? cell : Bytes{0};
    }
    OOMCAST_CHECK(of_leaf == device_by_leaf_[leaf], "{}: cells {} != sum {}", kLeafNames[leaf],
                  of_leaf.count(), device_by_leaf_[leaf].count());
    device += of_leaf;
  }
  OOMCAST_CHECK(device == device_used_ && device + device_free_ == total_,
                "cells {} used {} free {} total {}", device.count(), device_used_.count(),
                device_free_.count(), total_.count());
  OOMCAST_CHECK(torch == torch_reserved_ && host == pinned_host_,
                "torch {} reserved {} host {} pinned {}", torch.count(), torch_reserved_.count(),
                host.count(), pinned_host_.count());
}

std::string Ledger::table() const {
  std::string out;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    for (std::size_t backing = 0; backing < kBackingCount; ++backing) {
      const Bytes cell = cells_[leaf][backing];
      if (cell != Bytes{0}) {
        out += fmt::format("  {:<22} {:<13} {:>14}  {}\n", kLeafNames[leaf], kBackingNames[backing],
                           cell.count(), format_bytes(cell));
      }
    }
  }
  out += fmt::format("  {:<22} {:<13} {:>14}  {}\n", "free", "", device_free_.count(),
                     format_bytes(device_free_));
  return out;
}

void PeakTracker::observe(const Ledger& ledger, SimTime at, std::string_view during) {
  const Bytes used = ledger.device_total() - ledger.device_free();
  if (used > device_.bytes) {
    device_ = {used, at, ledger.device_by_leaf(), std::string(during)};
  }
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    observe(ledger, at, during, leaf);
  }
}

void PeakTracker::observe(const Ledger& ledger, SimTime at, std::string_view during,
                          std::span<const Leaf> changed) {
  for (const Leaf leaf : changed) {
    observe(ledger, at, during, index_of(leaf));
  }
}

void PeakTracker::observe(const Ledger& ledger, SimTime at, std::string_view during,
                          std::size_t leaf) {
  const Bytes bytes = ledger.device_by_leaf()[leaf];
  if (bytes > leaves_[leaf].bytes) {
    leaves_[leaf] = {bytes, at, ledger.device_by_leaf(), std::string(during)};
  }
}

}  // namespace oomcast
