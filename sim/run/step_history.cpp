#include "sim/run/step_history.hpp"

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/startup_tag.hpp"

namespace oomcast {
namespace {

using allocator::CachingAllocator;
using allocator::Trace;

// Calls of a startup that a history shows at most.
constexpr std::size_t kMostStartupEvents = std::size_t{1} << 16;

// PyTorch's entries of new memory carry the stack of the allocation that asked for it, which comes
// next.
void tag_segments(Trace& trace) {
  std::uint32_t asking = 0;
  for (auto event = trace.rbegin(); event != trace.rend(); ++event) {
    switch (event->action) {
      case allocator::Action::kAlloc:
        asking = event->tag;
        break;
      case allocator::Action::kSegmentAlloc:
      case allocator::Action::kSegmentMap:
        event->tag = asking;
        break;
      default:
        asking = 0;
    }
  }
}

// The startup once more, this time watched, up to the state `ready`: one that failed may have ended
// in either half.
void trace_startup(const vllm::Deployment& deployment, int stage, Blocks blocks,
                   std::uint64_t ready, MemoryHistory& history) {
  vllm::StageStartup startup(deployment, stage);
  CachingAllocator& torch = startup.state().memory.torch();
  Trace trace;
  torch.trace_to(&trace);
  if (startup.measure() && torch.state_digest() != ready) {
    startup.serve(blocks);
  }
  OOMCAST_CHECK(torch.state_digest() == ready, "stage {} started twice ends in two states", stage);
  tag_segments(trace);
  for (std::size_t i = trace.size() - std::min(trace.size(), kMostStartupEvents); i < trace.size();
       ++i) {
    history.events.push_back({trace[i], SimTime{}});
  }
  history.segments = torch.snapshot();
}

std::vector<std::vector<AllocationSite>> all_sites(const StepPlayer& player) {
  std::vector<std::vector<AllocationSite>> sites(vllm::kExecutions);
  for (std::size_t way = 0; way < sites.size(); ++way) {
    for (std::size_t place = 0; place < player.made(way).size(); ++place) {
      sites[way].push_back(player.site(way, place));
    }
  }
  return sites;
}

}  // namespace

StepHistory::StepHistory(const CachingAllocator& start) : first_(start.state_digest()) {
  newer_.start = std::make_shared<const CachingAllocator>(start);
}

void StepHistory::add(const StepRun& steps, std::size_t events, const Now& now) {
  if (events == 0) {
    return;
  }
  newer_.runs.push_back({steps, events});
  newer_.events += events * static_cast<std::size_t>(steps.steps);
  if (newer_.events >= kMostEvents) {
    older_ = std::move(newer_);
    newer_ = {std::make_shared<const CachingAllocator>(now()), {}, 0};
  }
}

MemoryHistory StepHistory::replay(const vllm::Deployment& deployment, int stage, Blocks blocks,
                                  StepPlayer& player, const CachingAllocator& end) const {
  MemoryHistory history;
  trace_startup(deployment, stage, blocks, first_, history);
  history.sites = all_sites(player);
  CachingAllocator torch = older_.start ? *older_.start : *newer_.start;
  history.settings = torch.settings();
  Trace trace;
  torch.trace_to(&trace);
  std::vector<SimTime> times;  // of the trace's events
  std::uint32_t tag = kFirstStepTag;
  for (const Part* part : {&older_, &newer_}) {
    for (const Kept& kept : part->runs) {
      // Steps of a run are alike and change nothing, so that the last of them suffice.
      const auto enough = static_cast<std::int64_t>(kMostEvents / kept.events + 1);
      for (std::int64_t i = std::max<std::int64_t>(0, kept.run.steps - enough); i < kept.run.steps;
           ++i) {
        const SimTime at = kept.run.start_of(i);
        const std::size_t way = player.way(kept.run.tokens, kept.run.rows);
        history.steps.push_back({at, kept.run.tokens, kept.run.rows, way, tag});
        const auto played = player.play(kept.run.tokens, kept.run.rows, torch, tag);
        if (played.failed) {
          trace.back().tag = tag + static_cast<std::uint32_t>(*played.failed);  // the oom entry
        }
        tag += static_cast<std::uint32_t>(player.made(way).size());
        times.resize(trace.size(), at);
      }
    }
  }
  tag_segments(trace);
  // Not by digest: handles of blocks that an out-of-memory leaves behind may differ.
  const allocator::AllocatorStats& stats = torch.stats();
  OOMCAST_CHECK(stats.reserved == end.stats().reserved &&
                    stats.allocated == end.stats().allocated &&
                    stats.inactive_split == end.stats().inactive_split &&
                    stats.segments == end.stats().segments,
                "{} steps run again end with {} B reserved, not {} B", history.steps.size(),
                stats.reserved.count(), end.stats().reserved.count());
  for (std::size_t i = trace.size() - std::min(trace.size(), kMostEvents); i < trace.size(); ++i) {
    history.events.push_back({trace[i], times[i]});
  }
  if (!history.steps.empty()) {
    history.segments = torch.snapshot();
  }
  return history;
}

}  // namespace oomcast
