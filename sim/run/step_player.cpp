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
  handles_.resize(std::max(handles_.size(), way.made.size()), BlockHandle::kNull);
}

StepPlayer::Played StepPlayer::play(Tokens tokens, std::int64_t rows, CachingAllocator& torch,
                                    std::uint32_t first_tag) {
  const Way& way = ways_[this->way(tokens, rows)];
  const opgraph::StepShape shape{tokens.count(), rows, rows};
  Played played;
  Highest highest(torch);
  std::fill(handles_.begin(), handles_.end(), BlockHandle::kNull);
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
      handles_[made] = *block;
      if (*block != BlockHandle::kNull) {
        highest.made(call.leaf, bytes, torch.block_size(*block));
      }
    }
    for (; freed < op.freed_end; ++freed) {
      const std::uint32_t place = way.freed[freed];
      const BlockHandle block = std::exchange(handles_[place], BlockHandle::kNull);
      if (block != BlockHandle::kNull) {
        const Call& call = way.made[place];
        highest.freed(call.leaf, call.bytes.at(shape), torch.block_size(block));
        torch.free(block);
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
  for (std::size_t place = 0; place < handles_.size(); ++place) {
    if (handles_[place] != BlockHandle::kNull) {
      places.push_back(place);
    }
  }
  return places;
}

}  // namespace oomcast
