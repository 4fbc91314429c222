#include "sim/cluster/kv_custody.hpp"

#include "sim/core/error.hpp"

namespace oomcast::cluster {

void KvCustody::compute(KvShares& shares, Tokens tokens) {
  OOMCAST_CHECK(tokens >= Tokens{0}, "{} tokens computed", tokens.count());
  shares[static_cast<std::size_t>(Hand::kPrefill)] += tokens;
  sums_[static_cast<std::size_t>(Hand::kPrefill)] += tokens;
  computed_ += tokens;
}

void KvCustody::pass(KvShares& shares, Hand from, Hand to, Tokens tokens) {
  Tokens& left = shares[static_cast<std::size_t>(from)];
  OOMCAST_CHECK(tokens >= Tokens{0} && tokens <= left, "{} tokens pass on, {} are there",
                tokens.count(), left.count());
  left -= tokens;
  shares[static_cast<std::size_t>(to)] += tokens;
  sums_[static_cast<std::size_t>(from)] -= tokens;
  sums_[static_cast<std::size_t>(to)] += tokens;
}

void KvCustody::drop(KvShares& shares, Hand hand, Tokens tokens) {
  Tokens& left = shares[static_cast<std::size_t>(hand)];
  OOMCAST_CHECK(tokens >= Tokens{0} && tokens <= left, "{} tokens are dropped, {} are there",
                tokens.count(), left.count());
  left -= tokens;
  sums_[static_cast<std::size_t>(hand)] -= tokens;
  gone_ += tokens;
}

void KvCustody::release(KvShares& shares) {
  for (std::size_t hand = 0; hand < kHands; ++hand) {
    sums_[hand] -= shares[hand];
    gone_ += shares[hand];
    shares[hand] = Tokens{};
  }
}

void KvCustody::audit() const {
  Tokens held;
  for (const Tokens tokens : sums_) {
    OOMCAST_CHECK(tokens >= Tokens{0}, "a hand holds {} tokens", tokens.count());
    held += tokens;
  }
  OOMCAST_CHECK(held + gone_ == computed_, "{} tokens in hands and {} gone of {} computed",
                held.count(), gone_.count(), computed_.count());
}

}  // namespace oomcast::cluster
