#include "sim/kv/span_pool.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/kv/inner_keys.hpp"

namespace oomcast::kv {

void SpanPool::Hit::keep(std::int64_t count) {
  while (blocks > count) {
    Piece& last = pieces.back();
    const auto given_up =
        static_cast<std::int32_t>(std::min<std::int64_t>(blocks - count, last.end - last.begin));
    last.end -= given_up;
    blocks -= given_up;
    if (last.begin == last.end) {
      pieces.pop_back();
    }
  }
}

SpanPool::SpanPool(std::int64_t num_blocks, bool unhashed_first)
    : total_(num_blocks - 1),
      unhashed_first_(unhashed_first),
      free_(num_blocks - 1),
      noted_heads_(std::bit_ceil(static_cast<std::size_t>(num_blocks) / kWordBits * 16 + 1)),
      noted_mask_(noted_heads_.size() - 1) {
  if (total_ == 0) {
    return;
  }
  const SpanId all = new_span();
  for (std::int64_t block = total_; block > 0; --block) {
    at(all).blocks.push_back(static_cast<BlockId>(block));
  }
  link_free(all, kNoSpan);
}

SpanPool::SpanId SpanPool::new_span() {
  if (spare_.empty()) {
    spans_.emplace_back();
    return static_cast<SpanId>(spans_.size() - 1);
  }
  const SpanId id = spare_.back();
  spare_.pop_back();
  return id;
}

// The buffers of short spans are kept for the next ones.
void SpanPool::spare(SpanId id) {
  constexpr std::size_t kShort = 256;
  Span& span = at(id);
  Span empty;
  if (span.blocks.capacity() <= kShort && span.keys.capacity() <= kShort) {
    span.blocks.clear();
    span.keys.clear();
    std::swap(empty.blocks, span.blocks);
    std::swap(empty.keys, span.keys);
  }
  span = std::move(empty);
  spare_.push_back(id);
}

// Into the free list before a span of it, or at its end.
void SpanPool::link_free(SpanId id, SpanId before) {
  Span& span = at(id);
  span.next = before;
  span.previous = before == kNoSpan ? last_free_ : at(before).previous;
  (span.previous == kNoSpan ? first_free_ : at(span.previous).next) = id;
  (before == kNoSpan ? last_free_ : at(before).previous) = id;
}

void SpanPool::unlink_free(SpanId id) {
  const Span& span = at(id);
  (span.previous == kNoSpan ? first_free_ : at(span.previous).next) = span.next;
  (span.next == kNoSpan ? last_free_ : at(span.next).previous) = span.previous;
}

// Enters a span by its first key, behind those with the same one.
void SpanPool::link_key(SpanId id) {
  at(id).next_same = kNoSpan;
  at(id).last_same = id;
  note_head(at(id).keys.front());
  const auto [place, fresh] = heads_.try_emplace(at(id).keys.front(), id);
  if (!fresh) {
    Span& first = at(place->second);
    at(first.last_same).next_same = id;
    first.last_same = id;
  }
}

// Keys that are no longer first ones stay noted until most may be of that kind.
void SpanPool::note_head(BlockKey key) {
  const std::int64_t room = std::ssize(noted_heads_) * kWordBits / 32;
  if (++noted_ > std::max(room, 2 * static_cast<std::int64_t>(heads_.size()))) {
    std::fill(noted_heads_.begin(), noted_heads_.end(), 0);
    for (const auto& [head, id] : heads_) {
      noted_heads_[word_of(head)] |= bit_of(head);
    }
    noted_ = static_cast<std::int64_t>(heads_.size()) + 1;
  }
  noted_heads_[word_of(key)] |= bit_of(key);
}

std::size_t SpanPool::no_heads(std::span<const BlockKey> keys) const {
  constexpr std::size_t kStride = 8;  // looked up together, as a lookup waits for no other
  std::size_t at = 0;
  for (; at + kStride <= keys.size(); at += kStride) {
    std::uint64_t noted = 0;
    for (std::size_t i = 0; i < kStride; ++i) {
      const BlockKey key = keys[at + i];
      noted |= noted_heads_[word_of(key)] >> (key % kWordBits);
    }
    if ((noted & 1) != 0) {
      break;
    }
  }
  while (at < keys.size() && !may_be_head(keys[at])) {
    ++at;
  }
  return at;
}

void SpanPool::unlink_key(SpanId id) {
  const auto place = heads_.find(at(id).keys.front());
  OOMCAST_CHECK(place != heads_.end(), "span {} has a key that is not known", id);
  const SpanId next = at(id).next_same;
  SpanId before = place->second;
  if (before == id) {
    if (next == kNoSpan) {
      heads_.erase(place);
    } else {
      at(next).last_same = at(id).last_same;
      place.value() = next;
    }
    return;
  }
  Span& first = at(before);
  while (at(before).next_same != id) {
    before = at(before).next_same;
  }
  at(before).next_same = next;
  if (first.last_same == id) {
    first.last_same = before;
  }
}

// The blocks from `where` on get a span of their own.
SpanPool::SpanId SpanPool::cut(SpanId id, std::int64_t where) {
  const SpanId made = new_span();
  Span& front = at(id);
  Span& back = at(made);
  const std::int64_t hashed = front.hashed();
  back.blocks = front.blocks.cut(static_cast<std::size_t>(where));
  if (front.keyed() > where) {
    back.keys = front.keys.cut(static_cast<std::size_t>(where));
  }
  front.unshared = std::min(hashed, where) - front.keyed();
  back.unshared = std::max<std::int64_t>(hashed - where, 0) - back.keyed();
  back.references = front.references;
  back.rest = front.rest;
  front.rest = made;
  if (back.keyed() > 0) {
    link_key(made);
  }
  if (front.references == 0) {
    link_free(made, id);  // its blocks are evicted first
  }
  return made;
}

// The span with this key right behind the first one of the span, or of another with the same first
// key.
SpanPool::SpanId SpanPool::behind_head(SpanId id, BlockKey key) const {
  SpanId other = heads_.find(at(id).keys.front())->second;
  while (other != kNoSpan && (at(other).keyed() < 2 || at(other).keys[1] != key)) {
    other = at(other).next_same;
  }
  return other;
}

void SpanPool::find(std::span<const BlockKey> keys, Hit& hit) const {
  hit.clear();
  const std::int64_t count = std::ssize(keys);
  while (hit.blocks < count) {
    const BlockKey* const wanted = keys.data() + hit.blocks;
    SpanId id = kNoSpan;
    std::int32_t begin = 0;
    if (!hit.pieces.empty() && hit.pieces.back().end == 1) {
      id = behind_head(hit.pieces.back().span, *wanted);
      begin = 1;
    }
    if (id == kNoSpan) {
      const auto head = heads_.find(*wanted);
      if (head == heads_.end()) {
        return;
      }
      id = head->second;
      begin = 0;
    }
    const Run<BlockKey>& known = at(id).keys;
    const auto first = known.begin() + begin;
    const auto last = first + std::min(known.end() - first, count - hit.blocks);
    const auto equal = std::mismatch(first, last, wanted).first - first;
    hit.pieces.push_back({id, begin, begin + static_cast<std::int32_t>(equal)});
    hit.blocks += equal;
  }
}

std::int64_t SpanPool::free_of(const Hit& hit) const {
  std::int64_t blocks = 0;
  for (const Hit::Piece& piece : hit.pieces) {
    blocks += at(piece.span).references == 0 ? piece.end - piece.begin : 0;
  }
  return blocks;
}

void SpanPool::touch(const Hit& hit, Table& table) {
  for (const Hit::Piece& piece : hit.pieces) {
    const SpanId id = piece.begin == 0 ? piece.span : cut(piece.span, piece.begin);
    const std::int32_t blocks = piece.end - piece.begin;
    if (at(id).size() > blocks) {
      cut(id, blocks);
    }
    if (at(id).references++ == 0) {
      unlink_free(id);
      free_ -= blocks;
      cached_free_ -= blocks;
    }
    table.parts.push_back({id, blocks});
  }
  table.blocks += hit.blocks;
}

// Makes the last span of the table a part of its own.
void SpanPool::split_off_tail(Table& table) {
  while (at(table.parts.back().span).size() < table.parts.back().blocks) {
    Part& part = table.parts.back();
    const auto blocks = static_cast<std::int32_t>(at(part.span).size());
    const Part rest{at(part.span).rest, part.blocks - blocks};
    part.blocks = blocks;
    table.parts.push_back(rest);
  }
}

// The last span of the table, if nobody else holds it; else a new one behind it.
SpanPool::SpanId SpanPool::own_end(Table& table) {
  if (!table.parts.empty()) {
    split_off_tail(table);
    if (at(table.parts.back().span).references == 1) {
      return table.parts.back().span;
    }
  }
  const SpanId made = new_span();
  at(made).references = 1;
  table.parts.push_back({made, 0});
  return made;
}

void SpanPool::take_many(std::int64_t count, std::int64_t expected, Table& table) {
  const SpanId own = own_end(table);
  table.parts.back().blocks += static_cast<std::int32_t>(count);
  table.blocks += count;
  Run<BlockId>& blocks = at(own).blocks;
  if (blocks.size() == 0 && expected > table.blocks) {
    blocks.reserve(static_cast<std::size_t>(expected - table.blocks + count));
  }
  while (count > 0) {
    const SpanId front = first_free_;
    const auto from = std::make_reverse_iterator(at(front).blocks.end());
    const std::int64_t taken = std::min(count, at(front).size());
    blocks.append(from, from + taken);
    shrink(front, taken);
    count -= taken;
  }
}

// The last `count` blocks of a free span are taken.
void SpanPool::shrink(SpanId id, std::int64_t count) {
  Span& span = at(id);
  const std::int64_t left = span.size() - count;
  const std::int64_t hashed = span.hashed();
  if (span.keyed() > left) {
    evictions_ += static_cast<std::uint64_t>(span.keyed() - left);
    if (left == 0) {
      unlink_key(id);
    }
    span.keys.keep(static_cast<std::size_t>(left));
  }
  span.unshared = std::min(hashed, left) - span.keyed();
  cached_free_ -= std::max<std::int64_t>(hashed - left, 0);
  free_ -= count;
  span.blocks.keep(static_cast<std::size_t>(left));
  if (left == 0) {
    unlink_free(id);
    spare(id);
  }
}

// Whether the key is known already; then it is the first one of a span from now on. `before`: the
// span whose first key is that of the block before it, if there is one.
bool SpanPool::become_known(SpanId before, BlockKey key) {
  if (heads_.contains(key)) {
    return true;
  }
  const SpanId holder = before == kNoSpan ? kNoSpan : behind_head(before, key);
  if (holder != kNoSpan) {
    cut(holder, 1);
  }
  return holder != kNoSpan;
}

void SpanPool::insert(std::span<const BlockKey> keys, std::int64_t first, Table& table) {
  if (keys.empty()) {
    return;
  }
  insertions_ += keys.size();
  split_off_tail(table);
  SpanId own = table.parts.back().span;
  OOMCAST_CHECK(at(own).references == 1 && table.blocks - at(own).size() + at(own).keyed() == first,
                "block {} is not the first without a key", first);
  SpanId before = kNoSpan;
  if (at(own).keyed() == 1) {
    before = own;
  } else if (at(own).keyed() == 0 && first > 0) {
    Part part = table.parts[table.parts.size() - 2];
    while (at(part.span).size() < part.blocks) {
      part = {at(part.span).rest, part.blocks - static_cast<std::int32_t>(at(part.span).size())};
    }
    before = part.blocks == 1 ? part.span : kNoSpan;
  }
  while (!keys.empty()) {
    if (before == kNoSpan && at(own).keyed() > 0) {
      // Only as the first one of a span can a key be known here.
      Run<BlockKey>& known = at(own).keys;
      if (known.capacity() < known.size() + keys.size()) {
        known.reserve(at(own).blocks.capacity());  // as many at most, and grown as seldom
      }
      const std::size_t count = no_heads(keys);
      known.append(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count));
      keys = keys.subspan(count);
      if (keys.empty()) {
        break;
      }
    }
    if (become_known(before, keys.front()) && at(own).keyed() > 0) {
      own = cut(own, at(own).keyed());
      split_off_tail(table);
    }
    at(own).keys.push_back(keys.front());
    keys = keys.subspan(1);
    before = kNoSpan;
    if (at(own).keyed() == 1) {
      link_key(own);
      before = own;
    }
  }
}

void SpanPool::release(Table& table, std::int64_t hashed) {
  held_.clear();
  for (const Part& part : table.parts) {
    std::int64_t left = part.blocks;
    for (SpanId id = part.span; left > 0; id = at(id).rest) {
      held_.push_back(id);
      left -= at(id).size();
    }
    OOMCAST_CHECK(left == 0, "{} blocks of a table are missing", left);
  }
  boost::container::small_vector<SpanId, 4> to_front;
  const auto set_free = [this](SpanId id) {
    at(id).references = 0;
    at(id).rest = kNoSpan;
    free_ += at(id).size();
    cached_free_ += at(id).hashed();
  };
  std::int64_t begin = table.blocks;
  for (auto id = held_.rbegin(); id != held_.rend(); ++id) {
    begin -= at(*id).size();
    if (at(*id).references > 1) {
      --at(*id).references;
      continue;
    }
    const std::int64_t known = std::clamp(hashed - begin, at(*id).keyed(), at(*id).size());
    at(*id).unshared = known - at(*id).keyed();
    if (unhashed_first_ && known < at(*id).size()) {
      to_front.push_back(known > 0 ? cut(*id, known) : *id);
      set_free(to_front.back());
    }
    if (known > 0 || !unhashed_first_) {
      set_free(*id);
      link_free(*id, kNoSpan);
    }
  }
  for (auto id = to_front.rbegin(); id != to_front.rend(); ++id) {
    link_free(*id, first_free_);
  }
  table.clear();
}

void SpanPool::list(const Table& table, std::vector<BlockId>& blocks) const {
  for (const Part& part : table.parts) {
    std::int64_t left = part.blocks;
    for (SpanId id = part.span; left > 0; id = at(id).rest) {
      blocks.insert(blocks.end(), at(id).blocks.begin(), at(id).blocks.end());
      left -= at(id).size();
    }
  }
}

PoolListing SpanPool::listing() const {
  PoolListing listing;
  for (SpanId id = first_free_; id != kNoSpan; id = at(id).next) {
    const Run<BlockId>& blocks = at(id).blocks;
    listing.free_list.insert(listing.free_list.end(), std::make_reverse_iterator(blocks.end()),
                             std::make_reverse_iterator(blocks.begin()));
  }
  const auto count = static_cast<std::size_t>(total_) + 1;
  listing.references.resize(count);
  listing.hashed.resize(count);
  listing.keys.resize(count);
  for (const Span& span : spans_) {
    for (std::size_t i = 0; i < span.blocks.size(); ++i) {
      const auto block = static_cast<std::size_t>(span.blocks[i]);
      listing.references[block] = span.references;
      listing.hashed[block] = static_cast<std::int64_t>(i) < span.hashed();
      listing.keys[block] = i < span.keys.size() ? span.keys[i] : 0;
    }
  }
  return listing;
}

void SpanPool::check() const {
  std::int64_t blocks = 0;
  std::int64_t free = 0;
  std::int64_t cached = 0;
  std::size_t keyed = 0;
  std::vector<BlockKey> inner;
  for (const Span& span : spans_) {
    blocks += span.size();
    free += span.references == 0 ? span.size() : 0;
    cached += span.references == 0 ? span.hashed() : 0;
    keyed += span.keyed() > 0 ? 1U : 0U;
    OOMCAST_CHECK(span.unshared >= 0 && span.hashed() <= span.size(),
                  "{} blocks have {} keys and {} other hashes", span.size(), span.keyed(),
                  span.unshared);
    if (span.keyed() > 0) {
      inner.insert(inner.end(), span.keys.begin() + 1, span.keys.end());
    }
  }
  OOMCAST_CHECK(blocks == total_ && free == free_ && cached == cached_free_,
                "{} blocks of {}, {} free of {}, {} cached of {}", blocks, total_, free, free_,
                cached, cached_free_);
  std::int64_t listed = 0;
  for (SpanId id = first_free_; id != kNoSpan; id = at(id).next) {
    OOMCAST_CHECK(at(id).references == 0 && at(id).size() > 0,
                  "a span of {} blocks with {} references is in the free list", at(id).size(),
                  at(id).references);
    listed += at(id).size();
  }
  OOMCAST_CHECK(listed == free_, "{} blocks are listed free, {} counted", listed, free_);
  // Order does not reach the result: this only counts.
  std::size_t linked = 0;
  for (const auto& [key, first] : heads_) {
    for (SpanId id = first; id != kNoSpan; id = at(id).next_same) {
      OOMCAST_CHECK(at(id).keyed() > 0 && at(id).keys.front() == key,
                    "span {} is known by another key", id);
      ++linked;
    }
  }
  OOMCAST_CHECK(linked == keyed, "{} spans are known by a key, {} have one", linked, keyed);
  check_inner_keys(std::move(inner), heads_);
}

}  // namespace oomcast::kv
