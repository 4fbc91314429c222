// Calls a second of the caching allocator, an allocation and a free counting as one call each.
#include <benchmark/benchmark.h>

#include <vector>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/random.hpp"

namespace oomcast::allocator {
namespace {

// A call: allocate `size` bytes into a slot, or free a slot (size 0).
struct Call {
  std::uint32_t slot;
  std::int64_t size;
};

// The tensors of one step of a dense model (Llama-3.1-8B's shapes) in the order in which vLLM makes
// and drops them: inputs, 32 layers, logits and sampler.
class StepWriter {
 public:
  explicit StepWriter(std::vector<Call>& calls) : calls_(calls) {}

  void step(std::int64_t tokens, std::int64_t sequences) {
    constexpr std::int64_t kHidden = 4096 * 2;
    constexpr std::int64_t kQkv = 6144 * 2;
    constexpr std::int64_t kGateUp = 28672 * 2;
    constexpr std::int64_t kVocabulary = 128256;
    std::vector<std::uint32_t> inputs;
    for (const std::int64_t width : {4, 8, 8, 4, 1}) {
      inputs.push_back(make(tokens * width));
      inputs.push_back(make(sequences * width));
    }
    std::uint32_t hidden = make(tokens * kHidden);
    std::uint32_t residual = make(tokens * kHidden);
    for (int layer = 0; layer < 32; ++layer) {
      const std::uint32_t qkv = make(tokens * kQkv);
      drop(hidden);
      const std::uint32_t query = make(tokens * kHidden);
      const std::uint32_t attention = make(tokens * kHidden);
      drop(qkv);
      drop(query);
      hidden = make(tokens * kHidden);
      drop(attention);
      const std::uint32_t normed = make(tokens * kHidden);
      drop(residual);
      const std::uint32_t gate_up = make(tokens * kGateUp);
      drop(hidden);
      const std::uint32_t act = make(tokens * kGateUp / 2);
      drop(gate_up);
      hidden = make(tokens * kHidden);
      drop(act);
      residual = normed;
    }
    const std::uint32_t rows = make(sequences * kHidden);
    drop(hidden);
    drop(residual);
    const std::uint32_t logits = make(sequences * kVocabulary * 2);
    const std::uint32_t floats = make(sequences * kVocabulary * 4);
    const std::uint32_t noise = make(sequences * kVocabulary * 4);
    const std::uint32_t tokens_out = make(sequences * 8);
    for (const std::uint32_t slot : {rows, logits, noise, floats, tokens_out}) {
      drop(slot);
    }
    for (const std::uint32_t slot : inputs) {
      drop(slot);
    }
  }

  [[nodiscard]] std::size_t slots() const { return slots_; }

 private:
  std::uint32_t make(std::int64_t size) {
    if (spare_.empty()) {
      spare_.push_back(slots_++);
    }
    const std::uint32_t slot = spare_.back();
    spare_.pop_back();
    calls_.push_back({slot, size});
    return slot;
  }
  void drop(std::uint32_t slot) {
    calls_.push_back({slot, 0});
    spare_.push_back(slot);
  }

  std::vector<Call>& calls_;
  std::vector<std::uint32_t> spare_;
  std::uint32_t slots_ = 0;
};

AllocatorSettings settings_of(bool expandable) {
  AllocatorSettings settings;
  settings.expandable_segments = expandable;
  return settings;
}

// Weights and KV cache that stay, as a server has them.
CachingAllocator with_weights(bool expandable) {
  CachingAllocator allocator({.total = 80 * kGiB, .addresses = AddressPolicy::kFirstFit},
                             settings_of(expandable));
  for (int layer = 0; layer < 32; ++layer) {
    for (const std::int64_t mib : {48, 32, 224, 112}) {
      allocator.allocate(Bytes{mib} * kMiB.count());
    }
    allocator.allocate(Bytes{8192});
    allocator.allocate(Bytes{8192});
    allocator.allocate(Bytes{1} * kGiB.count());
  }
  return allocator;
}

// 64 steps with changing batches, one in eight with a prefill chunk, over and over.
void serving(benchmark::State& state) {
  CachingAllocator allocator = with_weights(state.range(0) != 0);
  RandomStream random = random_stream(1, "bench.allocator");
  std::vector<Call> calls;
  StepWriter writer(calls);
  for (int step = 0; step < 64; ++step) {
    const std::int64_t sequences = uniform_int(random, 1, 256);
    const bool prefills = step % 8 == 0;
    writer.step(sequences + (prefills ? uniform_int(random, 100, 7000) : 0), sequences);
  }
  std::vector<BlockHandle> slots(writer.slots());
  const auto run = [&] {
    for (const Call& call : calls) {
      if (call.size > 0) {
        slots[call.slot] = *allocator.allocate(Bytes{call.size});
      } else {
        allocator.free(slots[call.slot]);
      }
    }
  };
  run();
  for (auto unused : state) {
    run();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(calls.size()));
}
BENCHMARK(serving)->ArgName("expandable")->Arg(0)->Arg(1);

// `live` tensors of random sizes; each round frees one at random and makes another.
void random_mix(benchmark::State& state) {
  CachingAllocator allocator({.total = 80 * kGiB}, settings_of(state.range(1) != 0));
  RandomStream random = random_stream(1, "bench.allocator.mix");
  constexpr std::size_t kDrawn = 1 << 14;
  std::vector<Call> drawn;
  for (std::size_t i = 0; i < kDrawn; ++i) {
    const int log2 = static_cast<int>(uniform_int(random, 5, 24));
    drawn.push_back({static_cast<std::uint32_t>(uniform_int(random, 0, state.range(0) - 1)),
                     uniform_int(random, std::int64_t{1} << log2, std::int64_t{2} << log2)});
  }
  std::vector<BlockHandle> live;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    live.push_back(*allocator.allocate(Bytes{drawn[static_cast<std::size_t>(i) % kDrawn].size}));
  }
  std::size_t next = 0;
  for (auto unused : state) {
    const Call& call = drawn[next++ % kDrawn];
    allocator.free(live[call.slot]);
    live[call.slot] = *allocator.allocate(Bytes{call.size});
  }
  state.SetItemsProcessed(2 * state.iterations());
  std::int64_t free_blocks = 0;
  for (const SegmentLayout& segment : allocator.layout()) {
    for (const BlockLayout& block : segment.blocks) {
      free_blocks += block.use == BlockUse::kFree ? 1 : 0;
    }
  }
  state.counters["free_blocks"] = static_cast<double>(free_blocks);
}
BENCHMARK(random_mix)->ArgNames({"live", "expandable"})->ArgsProduct({{16, 256, 4096}, {0, 1}});

// A copy of the whole state and its digest, the two halves of remembering a step.
void copy_state(benchmark::State& state) {
  const CachingAllocator allocator = with_weights(false);
  for (auto unused : state) {
    CachingAllocator copy = allocator;
    benchmark::DoNotOptimize(copy);
  }
}
BENCHMARK(copy_state);

void state_digest(benchmark::State& state) {
  const CachingAllocator allocator = with_weights(false);
  for (auto unused : state) {
    benchmark::DoNotOptimize(allocator.state_digest());
  }
}
BENCHMARK(state_digest);

}  // namespace
}  // namespace oomcast::allocator
