// Blocks used on several streams, the events that end such uses, and graph captures
// (runtime.md 1.5; allocator.md 2, 6).
#include <algorithm>
#include <utility>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {
namespace {

void add_unique(std::vector<StreamId>& streams, StreamId stream) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
}

}  // namespace

void CachingAllocator::record_stream(BlockHandle handle, StreamId stream) {
  const auto id = static_cast<std::uint32_t>(handle);
  OOMCAST_CHECK(id < blocks_.size() && blocks_[id].state == BlockState::kAllocated,
                "stream recorded for block {}, which is not allocated", id);
  Block& block = blocks_[id];
  if (lists_[block.list].stream == stream) {
    return;
  }
  if (block.uses == kNone) {
    if (spare_uses_.empty()) {
      block.uses = static_cast<std::uint32_t>(uses_.size());
      uses_.emplace_back();
    } else {
      block.uses = spare_uses_.back();
      spare_uses_.pop_back();
    }
  }
  add_unique(uses_[block.uses].recorded, stream);
  if (capturing_) {
    add_unique(uses_[block.uses].captured, stream);
  }
}

void CachingAllocator::drop_uses(Block& block) {
  uses_[block.uses].recorded.clear();
  uses_[block.uses].captured.clear();
  spare_uses_.push_back(block.uses);
  block.uses = kNone;
}

CachingAllocator::StreamEvents& CachingAllocator::events_of(StreamId stream) {
  auto place = std::lower_bound(
      events_.begin(), events_.end(), stream,
      [](const StreamEvents& each, StreamId wanted) { return each.stream < wanted; });
  if (place == events_.end() || place->stream != stream) {
    place = events_.insert(place, StreamEvents{stream, {}, 0});
  }
  return *place;
}

// What was recorded within a capture is remembered by PyTorch until a deferred free uses it, also
// past a free outside of captures; hence `captured` stays.
void CachingAllocator::insert_events(std::uint32_t id) {
  Block& block = blocks_[id];
  StreamUses& uses = uses_[block.uses];
  for (const StreamId stream : uses.recorded) {
    events_of(stream).blocks.push_back(id);
    block.events += 1;
  }
  uses.recorded.clear();
  if (uses.captured.empty()) {
    drop_uses(block);
  }
}

// Events are recorded now for blocks freed within a capture, but only on streams that used them
// outside of it; without any such the block is free at once.
void CachingAllocator::insert_deferred_events() {
  const std::vector<std::uint32_t> deferred = std::exchange(deferred_, {});
  for (const std::uint32_t id : deferred) {
    Block& block = blocks_[id];
    StreamUses& uses = uses_[block.uses];
    std::erase_if(uses.recorded, [&](StreamId stream) {
      return std::find(uses.captured.begin(), uses.captured.end(), stream) != uses.captured.end();
    });
    uses.captured.clear();
    insert_events(id);
    if (block.events == 0) {
      complete_free(id);
    }
  }
}

void CachingAllocator::finish_event(std::uint32_t id) {
  Block& block = blocks_[id];
  block.events -= 1;
  if (block.events == 0) {
    complete_free(id);
  }
}

void CachingAllocator::complete_events(StreamId stream, std::int64_t count) {
  OOMCAST_CHECK(count >= 0, "{} events complete", count);
  for (StreamEvents& each : events_) {
    if (each.stream != stream) {
      continue;
    }
    const std::size_t waiting = each.blocks.size() - each.complete;
    const std::size_t completed =
        count == 0 ? waiting : std::min(waiting, static_cast<std::size_t>(count));
    each.complete += completed;
    complete_events_ += completed;
  }
}

void CachingAllocator::poll_events() {
  insert_deferred_events();
  if (complete_events_ == 0) {
    return;
  }
  for (StreamEvents& each : events_) {
    for (; each.complete > 0; --each.complete) {
      const std::uint32_t block = each.blocks.front();
      each.blocks.pop_front();
      finish_event(block);
    }
  }
  complete_events_ = 0;
  std::erase_if(events_, [](const StreamEvents& each) { return each.blocks.empty(); });
}

// synchronize_and_free_events: waits for all events, or for those of one pool's blocks; then the
// earlier ones of the same streams are complete too, and are found so by the next poll.
void CachingAllocator::wait_for_events(std::optional<std::uint32_t> pool) {
  stats_.sync_all_streams += 1;
  insert_deferred_events();
  complete_events_ = 0;
  for (StreamEvents& each : events_) {
    std::deque<std::uint32_t> kept;
    std::size_t kept_complete = 0;
    std::size_t index = 0;
    for (const std::uint32_t block : each.blocks) {
      if (pool && lists_[blocks_[block].list].pool != *pool) {
        kept.push_back(block);
        kept_complete = index < each.complete ? kept.size() : kept_complete;
      } else {
        kept_complete = kept.size();
        finish_event(block);
      }
      ++index;
    }
    each.blocks = std::move(kept);
    each.complete = kept_complete;
    complete_events_ += kept_complete;
  }
  std::erase_if(events_, [](const StreamEvents& each) { return each.blocks.empty(); });
}

void CachingAllocator::begin_capture(StreamId stream) {
  OOMCAST_CHECK(!is_capturing(stream), "stream is being captured");
  captures_.push_back(stream);
  set_current_stream(stream);
}

void CachingAllocator::end_capture(StreamId stream) {
  OOMCAST_CHECK(is_capturing(stream), "stream is not being captured");
  captures_.erase(std::find(captures_.begin(), captures_.end(), stream));
  set_current_stream(StreamId::kDefault);
}

bool CachingAllocator::is_capturing(StreamId stream) const {
  return std::find(captures_.begin(), captures_.end(), stream) != captures_.end();
}

void CachingAllocator::set_current_stream(StreamId stream) {
  current_stream_ = stream;
  capturing_ = is_capturing(stream);
}

}  // namespace oomcast::allocator
