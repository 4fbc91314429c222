// The program of a serving step as calls on PyTorch's allocator, and what they come to.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/engines/vllm/step_peaks.hpp"
#include "sim/ledger/ledger.hpp"
#include "sim/opgraph/program.hpp"
#include "sim/run/allocator_record.hpp"

namespace oomcast {

// Memory at one moment within a step.
struct StepMoment {
  LeafBytes tensors{};  // of the step, by leaf
  Bytes beyond;         // what their blocks hold beyond them
  Bytes allocated;      // the rest as the allocator counts it, over all its pools
  Bytes reserved;
  Bytes inactive_split;
  std::int64_t segments = 0;
  Bytes device_free;

  friend bool operator==(const StepMoment&, const StepMoment&) = default;
};

class StepPlayer {
 public:
  StepPlayer(const vllm::Deployment& deployment, int stage);

  struct Played {
    // When the card was fullest and when most bytes were allocated, in order of time; one moment
    // if they are the same. Of equals the first; where the card is equally full, that with more
    // allocated.
    std::array<StepMoment, 2> moments;
    std::size_t moment_count = 1;
    std::size_t calls = 0;              // of the allocator, as its trace counts them
    std::optional<std::size_t> failed;  // place of the tensor that found no memory
  };

  // Runs one step. Tensors are tagged `first_tag` + place, in the order in which they are made.
  // When memory runs out, those alive stay: see live().
  Played play(Tokens tokens, std::int64_t rows, allocator::CachingAllocator& torch,
              std::uint32_t first_tag);

  // How such a step runs: the number of its program.
  [[nodiscard]] std::size_t way(Tokens tokens, std::int64_t rows) const {
    return vllm::index_of(peaks_.execution_of(tokens, rows));
  }

  struct Call {
    opgraph::Affine bytes;
    Leaf leaf = Leaf::kRuntimeActivations;
    opgraph::TensorId tensor{};
    opgraph::OpId op{};
  };
  // The tensors that a way makes, in order.
  [[nodiscard]] const std::vector<Call>& made(std::size_t way) const { return ways_[way].made; }
  [[nodiscard]] AllocationSite site(std::size_t way, std::size_t place) const;
  // Places of the tensors alive since the last play() ran out of memory.
  [[nodiscard]] std::vector<std::size_t> live() const;

 private:
  struct Op {
    std::size_t made_end = 0;  // into Way::made, from where the op before ended
    std::size_t freed_end = 0;
  };
  struct Way {
    std::optional<opgraph::Program> program;
    std::vector<Call> made;
    std::vector<std::uint32_t> freed;  // places
    std::vector<Op> ops;
  };

  void add(const vllm::Deployment& deployment, int stage, vllm::Execution execution);

  vllm::StepPeaks peaks_;
  std::array<Way, vllm::kExecutions> ways_;
  struct Live {
    allocator::BlockHandle block = allocator::BlockHandle::kNull;
    Bytes bytes;
    Bytes block_bytes;
  };
  std::vector<Live> live_;  // by place; without a block: not alive
};

}  // namespace oomcast
