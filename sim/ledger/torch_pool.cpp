#include "sim/ledger/torch_pool.hpp"

#include <algorithm>

#include "sim/core/error.hpp"

namespace oomcast {

TorchPool::TorchPool(Ledger& ledger, Backing backing) : ledger_(&ledger), backing_(backing) {
  OOMCAST_CHECK(is_torch(backing), "{} is not memory of PyTorch", name_of(backing));
}

Bytes TorchPool::growth_for(Bytes rounded) const {
  const Bytes cached = ledger_->at(Leaf::kSystemCached, backing_);
  return rounded <= cached ? Bytes{0} : align_up(rounded - cached, kDriverGranule);
}

Bytes TorchPool::shortage(Bytes bytes) const {
  const Bytes growth = growth_for(align_up(bytes, kTorchBlock));
  return std::max(Bytes{0}, growth - ledger_->device_free());
}

bool TorchPool::allocate(Leaf leaf, Bytes bytes) {
  const Bytes rounded = align_up(bytes, kTorchBlock);
  const Bytes growth = growth_for(rounded);
  if (growth > ledger_->device_free()) {
    return false;
  }
  const Account cached = Account::cell(Leaf::kSystemCached, backing_);
  if (growth > Bytes{0}) {
    ledger_->transfer(Account::free_of(backing_), cached, growth);
  }
  ledger_->transfer(cached, Account::cell(leaf, backing_), rounded);
  return true;
}

void TorchPool::free(Leaf leaf, Bytes bytes) {
  ledger_->transfer(Account::cell(leaf, backing_), Account::cell(Leaf::kSystemCached, backing_),
                    align_up(bytes, kTorchBlock));
}

void TorchPool::empty_cache() {
  // Reserved memory stays whole granules: what is allocated keeps its last, partly used one.
  const Bytes cached = ledger_->at(Leaf::kSystemCached, backing_);
  const Bytes returned = kDriverGranule * (cached / kDriverGranule);
  ledger_->transfer(Account::cell(Leaf::kSystemCached, backing_), Account::free_of(backing_),
                    returned);
}

}  // namespace oomcast
