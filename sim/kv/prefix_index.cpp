#include "sim/kv/prefix_index.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/kv/inner_keys.hpp"

namespace oomcast::kv {

PrefixIndex::Place PrefixIndex::place(BlockId block, BlockKey key) const {
  Place at = home(block);
  while (at.run >= 0 && run(at.run).elements[at.offset].key != key) {
    at = {run(at.run).next_of_block, 0};
    at.offset = at.run >= 0 ? static_cast<std::uint32_t>(run(at.run).begin) : 0;
  }
  return at;
}

// The place of a key that is not the first one of a run, `at` being a place of the key before it.
PrefixIndex::Place PrefixIndex::behind(const Place& at, BlockKey key) const {
  const auto holds_key = [&](const Run& holder, std::size_t offset) {
    return offset < holder.elements.size() && holder.elements[offset].key == key;
  };
  const Run& own = run(at.run);
  if (holds_key(own, at.offset + 1)) {
    return {at.run, at.offset + 1};
  }
  if (at.offset == own.begin) {
    const std::int32_t first = heads_.find(own.head().key)->second;
    for (std::int32_t other = first; other >= 0; other = run(other).next_same) {
      if (holds_key(run(other), run(other).begin + 1)) {
        return {other, static_cast<std::uint32_t>(run(other).begin + 1)};
      }
    }
  }
  return {};
}

std::int32_t PrefixIndex::new_run() {
  if (spare_runs_.empty()) {
    runs_.emplace_back();
    return static_cast<std::int32_t>(runs_.size() - 1);
  }
  const std::int32_t index = spare_runs_.back();
  spare_runs_.pop_back();
  run(index) = Run{};
  return index;
}

// Enters a run by its first key, behind those with the same one.
void PrefixIndex::link(std::int32_t index) {
  run(index).next_same = -1;
  run(index).last_same = index;
  const auto [place, fresh] = heads_.try_emplace(run(index).head().key, index);
  if (!fresh) {
    Run& first = run(place->second);
    run(first.last_same).next_same = index;
    first.last_same = index;
  }
}

// The run before `index` among those with the first key of `first`, another one.
std::int32_t PrefixIndex::before_same(std::int32_t first, std::int32_t index) const {
  while (run(first).next_same != index) {
    first = run(first).next_same;
  }
  return first;
}

void PrefixIndex::unlink(std::int32_t index) {
  const std::int32_t next = run(index).next_same;
  const auto place = heads_.find(run(index).head().key);
  OOMCAST_CHECK(place != heads_.end(), "block {} is hashed but not indexed",
                run(index).head().block);
  const std::int32_t first = place->second;
  if (first == index) {
    if (next < 0) {
      heads_.erase(place);
    } else {
      run(next).last_same = run(index).last_same;
      place.value() = next;
    }
    return;
  }
  const std::int32_t before = before_same(first, index);
  run(before).next_same = next;
  if (run(first).last_same == index) {
    run(first).last_same = before;
  }
}

// Run `with` takes the place of `old` among the runs with its first key.
void PrefixIndex::replace(std::int32_t old, std::int32_t with) {
  const auto place = heads_.find(run(old).head().key);
  const std::int32_t first = place->second;
  run(with).next_same = run(old).next_same;
  if (first == old) {
    run(with).last_same = run(old).last_same == old ? with : run(old).last_same;
    place.value() = with;
    return;
  }
  const std::int32_t before = before_same(first, old);
  run(before).next_same = with;
  if (run(first).last_same == old) {
    run(first).last_same = with;
  }
}

// The elements from `at` on get a run of their own. The shorter part moves.
void PrefixIndex::cut(std::int32_t index, std::size_t at) {
  const std::int32_t made = new_run();
  auto& elements = run(index).elements;
  auto& moved = run(made).elements;
  const std::size_t begin = run(index).begin;
  if (at - begin < elements.size() - at) {
    moved.assign(elements.begin() + static_cast<std::ptrdiff_t>(begin),
                 elements.begin() + static_cast<std::ptrdiff_t>(at));
    replace(index, made);
    run(index).begin = at;
    link(index);
  } else {
    moved.assign(elements.begin() + static_cast<std::ptrdiff_t>(at), elements.end());
    elements.resize(at);
    link(made);
  }
  for (std::size_t i = 0; i < moved.size(); ++i) {
    set_home(moved[i].block, made, i);
  }
}

void PrefixIndex::insert(BlockKey key, BlockId block, std::int64_t tokens, const Before& before) {
  const Place previous = before.block == kNullBlock ? Place{} : place(before.block, before.key);
  bool known = heads_.contains(key);
  if (!known && previous.run >= 0) {
    if (const Place same = behind(previous, key); same.run >= 0) {
      cut(same.run, same.offset);
      known = true;
    }
  }
  const Element element{key, block, static_cast<std::int32_t>(tokens)};
  if (!known && previous.run >= 0 && !holds(block) && run(previous.run).next_of_block < 0 &&
      previous.run == home(before.block).run &&
      previous.offset + 1 == run(previous.run).elements.size()) {
    run(previous.run).elements.push_back(element);
    set_home(block, previous.run, previous.offset + 1);
    return;
  }
  if (holds(block) && run(home(block).run).elements.size() - run(home(block).run).begin > 1) {
    // A block with several keys lies in no run with others.
    const Place own = home(block);
    if (own.offset + 1 < run(own.run).elements.size()) {
      cut(own.run, own.offset + 1);
    }
    if (home(block).offset != run(home(block).run).begin) {
      cut(home(block).run, home(block).offset);
    }
  }
  const std::int32_t made = new_run();
  run(made).elements.push_back(element);
  if (holds(block)) {
    Run& first = run(home(block).run);
    run(made).next_of_block = first.next_of_block;
    first.next_of_block = made;
  } else {
    set_home(block, made, 0);
  }
  link(made);
}

void PrefixIndex::insert(std::span<const BlockKey> keys, std::span<const BlockId> blocks,
                         std::int64_t tokens, std::int64_t step, Before before) {
  std::size_t i = 0;
  while (i < keys.size()) {
    insert(keys[i], blocks[i], tokens, before);
    // Behind the first key of a run others may be met again, behind a later one at the end nothing.
    const Place last = home(blocks[i]);
    auto& elements = run(last.run).elements;
    const bool grows = last.offset > run(last.run).begin && last.offset + 1 == elements.size();
    if (const std::size_t size = elements.size() + keys.size() - i;
        grows && size > elements.capacity()) {
      elements.reserve(std::max(size, elements.capacity() * 3 / 2));
    }
    before = {blocks[i], keys[i]};
    tokens += step;
    ++i;
    while (grows && i < keys.size() && !heads_.contains(keys[i])) {
      OOMCAST_CHECK(!holds(blocks[i]), "block {} has a key already", blocks[i]);
      set_home(blocks[i], last.run, elements.size());
      elements.push_back({keys[i], blocks[i], static_cast<std::int32_t>(tokens)});
      before = {blocks[i], keys[i]};
      tokens += step;
      ++i;
    }
  }
}

BlockId PrefixIndex::find(BlockKey key) const {
  const auto place = heads_.find(key);
  return place == heads_.end() ? kNullBlock : run(place->second).head().block;
}

BlockId PrefixIndex::next(Cursor& cursor, BlockKey key) const {
  if (cursor.run_ >= 0) {
    const Place place = behind({cursor.run_, static_cast<std::uint32_t>(cursor.offset_)}, key);
    if (place.run >= 0) {
      cursor.run_ = place.run;
      cursor.offset_ = place.offset;
      return run(place.run).elements[place.offset].block;
    }
  }
  const auto place = heads_.find(key);
  if (place == heads_.end()) {
    return kNullBlock;
  }
  cursor.run_ = place->second;
  cursor.offset_ = run(place->second).begin;
  return run(place->second).head().block;
}

void PrefixIndex::remove(std::int32_t index, std::size_t offset) {
  if (offset != run(index).begin && offset + 1 < run(index).elements.size()) {
    // The part behind it or the part before it may be the one that keeps the run.
    const BlockId block = run(index).elements[offset].block;
    cut(index, offset + 1);
    index = home(block).run;
    offset = home(block).offset;
  }
  Run& holder = run(index);
  if (offset != holder.begin) {
    holder.elements.pop_back();
    return;
  }
  unlink(index);
  if (++holder.begin < holder.elements.size()) {
    link(index);
    return;
  }
  spare_runs_.push_back(index);
  // What a spare run would hold on to, a long one had to itself.
  holder.elements = {};
}

void PrefixIndex::forget_any(BlockId block) {
  const Place at = home(block);
  std::int32_t further = run(at.run).next_of_block;
  remove(at.run, at.offset);
  while (further >= 0) {
    const std::int32_t next = run(further).next_of_block;
    remove(further, run(further).begin);
    further = next;
  }
  state(block).run = BlockState::kUnhashed;
}

std::uint64_t PrefixIndex::move_keys(BlockId from, BlockId to) {
  std::vector<Element> moved;
  for (std::int32_t index = home(from).run; index >= 0; index = run(index).next_of_block) {
    moved.push_back(
        run(index).elements[index == home(from).run ? home(from).offset : run(index).begin]);
  }
  forget(from);
  for (const Element& old : moved) {
    insert(old.key, to, old.tokens, {});
  }
  return moved.size();
}

BlockKey PrefixIndex::first_key(BlockId block) const {
  return holds(block) ? run(home(block).run).elements[home(block).offset].key : 0;
}

std::int64_t PrefixIndex::first_key_tokens(BlockId block) const {
  return holds(block) ? run(home(block).run).elements[home(block).offset].tokens : 0;
}

void PrefixIndex::check() const {
  std::size_t listed = 0;
  std::vector<BlockKey> inner;
  // Order does not reach the result: this only counts.
  for (const auto& [key, first] : heads_) {
    for (std::int32_t index = first; index >= 0; index = run(index).next_same) {
      const Run& holder = run(index);
      OOMCAST_CHECK(holder.head().key == key, "block {} is indexed by another key",
                    holder.head().block);
      listed += holder.elements.size() - holder.begin;
      for (std::size_t i = holder.begin; i < holder.elements.size(); ++i) {
        OOMCAST_CHECK(has_key(holder.elements[i].block, holder.elements[i].key),
                      "block {} is indexed but not hashed", holder.elements[i].block);
        if (i > holder.begin) {
          inner.push_back(holder.elements[i].key);
        }
      }
    }
  }
  std::size_t hashed = 0;
  for (const BlockState& at : blocks_) {
    for (std::int32_t index = at.run; index >= 0; index = run(index).next_of_block) {
      ++hashed;
    }
  }
  OOMCAST_CHECK(listed == hashed, "{} keys are indexed, blocks have {}", listed, hashed);
  check_inner_keys(std::move(inner), heads_);
}

}  // namespace oomcast::kv
