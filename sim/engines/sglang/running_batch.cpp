#include "sim/engines/sglang/running_batch.hpp"

#include <algorithm>

namespace oomcast::sglang {

std::int64_t last_output(const Request& request) {
  return request.ignore_eos ? request.max_output : std::min(request.max_output, request.stop_after);
}

std::int64_t RunningBatch::residue(const Request& request) const {
  const std::int64_t left = (request.kv.filled - request.joined) % page_;
  return left < 0 ? left + page_ : left;
}

void RunningBatch::join(Slot slot, bool pending) {
  Request& member = at(slot);
  member.running = true;
  member.counting = true;
  member.join = next_join_++;
  member.joined = launches_;
  member.reordered_at = -1;
  link_last(slot);
  ++size_;
  ++counting_;
  context_ += member.kv.filled - member.joined;
  if (!at_residue_.empty()) {
    ++at_residue_[static_cast<std::size_t>(residue(member))];
  }
  const std::int64_t first = member.output + (pending ? 1 : 0);
  push_end(slot, launches_ + std::max<std::int64_t>(last_output(member) - first, 1));
  if (member.aborting) {
    end_next(slot);
  }
}

void RunningBatch::settle(Slot slot) {
  Request& member = at(slot);
  if (!member.counting) {
    return;
  }
  --counting_;
  context_ -= member.kv.filled - member.joined;
  if (!at_residue_.empty()) {
    --at_residue_[static_cast<std::size_t>(residue(member))];
  }
  const std::int64_t output = this->output(member);
  const std::int64_t filled = this->filled(member);
  const std::int64_t decodes = this->decodes(member);
  member.output = output;
  member.kv.filled = filled;
  member.decodes = decodes;
  member.counting = false;
}

void RunningBatch::link_last(Slot slot) {
  Request& member = at(slot);
  member.order = next_order_++;
  member.previous = back_;
  member.next = kNoSlot;
  (back_ == kNoSlot ? front_ : at(back_).next) = slot;
  back_ = slot;
}

void RunningBatch::reorder(const std::vector<Slot>& order) {
  front_ = kNoSlot;
  back_ = kNoSlot;
  for (const Slot slot : order) {
    at(slot).former_order = at(slot).order;
    at(slot).reordered_at = launches_;
    link_last(slot);
  }
}

void RunningBatch::unlink(Slot slot) {
  Request& member = at(slot);
  (member.previous == kNoSlot ? front_ : at(member.previous).next) = member.next;
  (member.next == kNoSlot ? back_ : at(member.next).previous) = member.previous;
  member.running = false;
  --size_;
}

void RunningBatch::leave(Slot slot) {
  settle(slot);
  unlink(slot);
}

void RunningBatch::mark_finished(Slot slot) {
  settle(slot);
  ++finished_;
  done_.push_back(slot);
}

bool RunningBatch::drop_finished() {
  if (done_.empty()) {
    return false;
  }
  for (const Slot slot : done_) {
    unlink(slot);
    slots_->give_back(slot);
  }
  finished_ = 0;
  done_.clear();
  return true;
}

std::int64_t RunningBatch::at_page_end(std::int64_t ahead) const {
  if (page_ == 1) {
    return counting_;
  }
  if (!at_residue_.empty()) {
    const std::int64_t residue = (page_ - (launches_ + ahead) % page_) % page_;
    return at_residue_[static_cast<std::size_t>(residue)];
  }
  std::int64_t count = 0;
  for (Slot slot = front_; slot != kNoSlot; slot = at(slot).next) {
    count += at(slot).counting && (filled(at(slot)) + ahead) % page_ == 0 ? 1 : 0;
  }
  return count;
}

namespace {

// Heaps have the largest in front: earlier ends are "larger".
bool later(const auto& left, const auto& right) { return left.result > right.result; }

}  // namespace

void RunningBatch::push_end(Slot slot, std::int64_t result) {
  if (ends_.size() > 64 && ends_.size() > 4 * static_cast<std::size_t>(size_)) {
    std::erase_if(ends_, [&](const End& end) {
      return at(end.slot).join != end.join || !at(end.slot).counting;
    });
    std::make_heap(ends_.begin(), ends_.end(), later<End, End>);
  }
  ends_.push_back({result, slot, at(slot).join});
  std::push_heap(ends_.begin(), ends_.end(), later<End, End>);
}

void RunningBatch::end_next(Slot slot) {
  if (at(slot).counting) {
    push_end(slot, std::max(results_, at(slot).joined) + 1);
  }
}

void RunningBatch::calendar_again(Slot slot) {
  const Request& member = at(slot);
  const std::int64_t left = std::max<std::int64_t>(last_output(member) - output(member), 1);
  push_end(slot, std::max(results_, member.joined) + left);
}

std::int64_t RunningBatch::next_end() {
  while (!ends_.empty()) {
    const End& end = ends_.front();
    if (at(end.slot).join == end.join && at(end.slot).counting) {
      return end.result;
    }
    std::pop_heap(ends_.begin(), ends_.end(), later<End, End>);
    ends_.pop_back();
  }
  return kNever;
}

std::vector<Row> RunningBatch::take_due(std::int64_t result) {
  std::vector<Row> due;
  while (!ends_.empty() && ends_.front().result <= result) {
    const End end = ends_.front();
    std::pop_heap(ends_.begin(), ends_.end(), later<End, End>);
    ends_.pop_back();
    const Request& member = at(end.slot);
    if (member.join == end.join && member.counting) {
      const bool former = result <= member.reordered_at;
      due.push_back({end.slot, member.serial, former ? member.former_order : member.order});
    }
  }
  std::sort(due.begin(), due.end(),
            [](const Row& left, const Row& right) { return left.order < right.order; });
  due.erase(std::unique(due.begin(), due.end(),
                        [](const Row& left, const Row& right) { return left.slot == right.slot; }),
            due.end());
  return due;
}

}  // namespace oomcast::sglang
