#include "sim/run/step_player.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

using allocator::BlockHandle;
using allocator::CachingAllocator;

// Follows the two moments that a step is remembered by.
class Highest {
 public:
  explicit Highest(const CachingAllocator& torch) : torch_(torch) { full_ = most_ = now(); }

  void made(Leaf leaf, Bytes bytes, Bytes block) {
    now_.tensors[index_of(leaf)] += bytes;
    now_.beyond += block - bytes;
    ++position_;
    const allocator::AllocatorStats& stats = torch_.stats();
    if (stats.reserved > full_.moment.reserved ||
        (stats.reserved == full_.moment.reserved && stats.allocated > full_.moment.allocated)) {
      full_ = now();
    }
    if (stats.allocated > most_.moment.allocated) {
      most_ = now();
    }
  }
  void freed(Leaf leaf, Bytes bytes, Bytes block) {
    now_.tensors[index_of(leaf)] -= bytes;
    now_.beyond -= block - bytes;
  }

  void write(StepPlayer::Played& played) const {
    const auto& [first, second] = std::minmax(
        full_, most_, [](const Seen& a, const Seen& b) { return a.position < b.position; });
    played.moments = {first.moment, second.moment};
    played.moment_count = first.position == second.position ? 1 : 2;
  }

  void write_failure(StepPlayer::Played& played) const {
    played.moments = {full_.moment, now().moment};
    played.moment_count = played.moments[0] == played.moments[1] ? 1 : 2;
  }

 private:
  struct Seen {
    StepMoment moment;
    std::int64_t position = 0;  // tensors made so far
  };

  [[nodiscard]] Seen now() const {
    const allocator::AllocatorStats& stats = torch_.stats();
    Seen seen{now_, position_};
    seen.moment.allocated = stats.allocated;
    seen.moment.reserved = stats.reserved;
    seen.moment.inactive_split = stats.inactive_split;
    seen.moment.segments = stats.segments;
    seen.moment.device_free = torch_.device().free();
    return seen;
  }

  const CachingAllocator& torch_;
  StepMoment now_;
  std::int64_t position_ = 0;
  Seen full_;
  Seen most_;
};

}  // namespace

StepPlayer::StepPlayer(const vllm::Deployment& deployment, int stage) : peaks_(deployment, stage) {
  for (std::size_t i = 0; i < vllm::kExecutions; ++i) {
    add(deployment, stage, static_cast<vllm::Execution>(i));
  }
}

void StepPlayer::add(const vllm::Deployment& deployment, int stage, vllm::Execution execution) {
  Way& way = ways_[vllm::index_of(execution)];
  way.program.emplace(
      vllm::step_graph(deployment, stage, vllm::serving_kind(deployment, stage, execution)));
  const opgraph::OpGraph& graph = way.program->graph();
  std::vector<std::uint32_t> places(graph.tensor_count());
  std::uint32_t op = 0;
  for (const opgraph::Program::Step& step : way.program->steps()) {
    for (const opgraph::TensorId id : step.made) {
      const opgraph::TensorInfo& info = graph.info(id);
      OOMCAST_CHECK(!info.kept, "a serving step keeps {}", info.name);
      places[opgraph::index_of(id)] = static_cast<std::uint32_t>(way.made.size());
      way.made.push_back({info.bytes, info.leaf, id, opgraph::OpId{op}});
    }
    for (const opgraph::TensorId id : step.freed) {
      way.freed.push_back(places[opgraph::index_of(id)]);
    }
    if (!step.made.empty() || !step.freed.empty()) {
      way.ops.push_back({way.made.size(), way.freed.size()});
    }
    ++op;
  }
  live_.resize(std::max(live_.size(), way.made.size()));
}

StepPlayer::Played StepPlayer::play(Tokens tokens, std::int64_t rows, CachingAllocator& torch,
                                    std::uint32_t first_tag) {
  const Way& way = ways_[this->way(tokens, rows)];
  const opgraph::StepShape shape{tokens.count(), rows, rows};
  Played played;
  Highest highest(torch);
  std::fill(live_.begin(), live_.end(), Live{});
  std::size_t made = 0;
  std::size_t freed = 0;
  for (const Op& op : way.ops) {
    for (; made < op.made_end; ++made) {
      const Call& call = way.made[made];
      const Bytes bytes = call.bytes.at(shape);
      const auto block = torch.allocate(bytes, allocator::StreamId::kDefault,
                                        first_tag + static_cast<std::uint32_t>(made));
      if (!block) {
        ++played.calls;
        highest.write_failure(played);
        played.failed = made;
        return played;
      }
      if (*block != BlockHandle::kNull) {
        live_[made] = {*block, bytes, torch.block_size(*block)};
        highest.made(call.leaf, bytes, live_[made].block_bytes);
      }
    }
    for (; freed < op.freed_end; ++freed) {
      const std::uint32_t place = way.freed[freed];
      const Live live = std::exchange(live_[place], Live{});
      if (live.block != BlockHandle::kNull) {
        highest.freed(way.made[place].leaf, live.bytes, live.block_bytes);
        torch.free(live.block);
        played.calls += 3;  // the allocation, and the two of a free
      }
    }
  }
  highest.write(played);
  return played;
}

AllocationSite StepPlayer::site(std::size_t way, std::size_t place) const {
  const Call& call = ways_[way].made[place];
  const opgraph::OpGraph& graph = ways_[way].program->graph();
  const opgraph::TensorInfo& tensor = graph.info(call.tensor);
  const opgraph::OpGraph::OpInfo& op = graph.info(call.op);
  return {tensor.name, tensor.formula, op.name, op.scope, tensor.leaf};
}

std::vector<std::size_t> StepPlayer::live() const {
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < live_.size(); ++place) {
    if (live_[place].block != BlockHandle::kNull) {
      places.push_back(place);
    }
  }
  return places;
}

}  // namespace oomcast
