// The secondary pool (kvCacheManager.cpp, evictionPolicy.cpp and kvCacheTransferManager.cpp
// of 1.x): a block with content that leaves the primary pool takes the place of the host's least
// recent one, and a prompt that finds its content there brings it back. No host block is ever held
// by a request.
#include "sim/core/error.hpp"
#include "sim/engines/trtllm/scheduler_impl.hpp"

namespace oomcast::trtllm {

kv::BlockId Scheduler::Impl::take_block() {
  if (pool_.hashed(pool_.front()) && host_->free() > 0) {
    offload(pool_.front());
  }
  return pool_.take();
}

// To the back of the host's queue. Content that nobody shares is copied like any other.
void Scheduler::Impl::offload(kv::BlockId block) {
  const kv::BlockKey key = pool_.first_key(block);
  const kv::BlockId place = host_->take();
  kv::BlockPool::Release release(*host_);
  if (key == 0) {
    release.owned({place}, 0, 1);
  } else {
    host_->insert(key, place, pool_.first_key_tokens(block));
    release(place);
  }
  plan_.host.offloaded += Blocks{1};
}

// The block with this content, of a prefix of so many tokens, held by one more; null if it is in
// neither pool. The place that it leaves on the host is the last to be used again.
kv::BlockId Scheduler::Impl::claim(kv::BlockKey key, std::int64_t tokens) {
  if (const kv::BlockId found = pool_.find(key); found != kv::kNullBlock) {
    pool_.touch(found);
    return found;
  }
  const kv::BlockId place = host_ ? host_->find(key) : kv::kNullBlock;
  if (place == kv::kNullBlock) {
    return kv::kNullBlock;
  }
  host_->touch(place);
  const kv::BlockId block = take_block();
  pool_.insert(key, block, tokens);
  host_->forget(place);
  kv::BlockPool::Release release(*host_);
  release(place);
  plan_.host.onboarded += Blocks{1};
  return block;
}

bool Scheduler::Impl::known(kv::BlockKey key) const {
  return pool_.find(key) != kv::kNullBlock || (host_ && host_->find(key) != kv::kNullBlock);
}

}  // namespace oomcast::trtllm
