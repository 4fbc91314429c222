// Cost of the vLLM scheduler: of a step at several batch sizes, and of a request of a length-only
// trace.
#include <benchmark/benchmark.h>

#include "sim/core/random.hpp"
#include "sim/engines/vllm/scheduler.hpp"

namespace oomcast::vllm {
namespace {

SchedulerConfig roomy(std::int64_t requests, bool async) {
  SchedulerConfig config;
  config.max_num_seqs = requests;
  config.max_num_batched_tokens = Tokens{8192};
  config.max_model_len = Tokens{std::int64_t{1} << 40};
  config.num_gpu_blocks = Blocks{1 << 20};
  config.async_scheduling = async;
  config.rules = rules_for(Version{{0, 33, 0}});
  return config;
}

void round(Scheduler& scheduler) {
  scheduler.schedule();
  if (scheduler.batches_in_flight() == scheduler.depth()) {
    scheduler.complete();
  }
}

// `requests` decodes that last longer than the benchmark.
Scheduler decoding(std::int64_t requests, bool async) {
  Scheduler scheduler(roomy(requests, async));
  for (std::int64_t i = 0; i < requests; ++i) {
    RequestSpec spec;
    spec.id = static_cast<RequestId>(i);
    spec.prompt_len = Tokens{16 + i % 97};
    spec.max_output = Tokens{std::int64_t{1} << 40};
    scheduler.add(spec);
  }
  while (scheduler.steady_steps(1) == 0) {
    round(scheduler);
  }
  return scheduler;
}

void single_rounds(benchmark::State& state) {
  const bool async = state.range(1) != 0;
  Scheduler scheduler = decoding(state.range(0), async);
  for (auto unused : state) {
    round(scheduler);
    if (scheduler.blocks().free < Blocks{1 << 16}) {
      state.PauseTiming();
      scheduler = decoding(state.range(0), async);
      state.ResumeTiming();
    }
  }
}
BENCHMARK(single_rounds)->ArgNames({"running", "async"})->ArgsProduct({{8, 64, 512, 4096}, {0, 1}});

void steady_rounds(benchmark::State& state) {
  constexpr std::int64_t kSteps = 64;
  Scheduler scheduler = decoding(state.range(0), true);
  for (auto unused : state) {
    scheduler.advance_steady(scheduler.steady_steps(kSteps));
    if (scheduler.blocks().free < Blocks{1 << 16}) {
      state.PauseTiming();
      scheduler = decoding(state.range(0), true);
      state.ResumeTiming();
    }
  }
  state.counters["per_step"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kSteps),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(steady_rounds)->ArgName("running")->Arg(8)->Arg(64)->Arg(512)->Arg(4096);

// A trace with the mean lengths of the Azure conversation trace (1155 in, 211 out), as many
// requests at a time as given; one item is one request.
void length_only_trace(benchmark::State& state) {
  SchedulerConfig config = roomy(1024, state.range(1) != 0);
  config.max_model_len = Tokens{16384};
  config.num_gpu_blocks = Blocks{27500};
  Scheduler scheduler(config);
  RandomStream lengths = random_stream(1, "bench.lengths");
  RequestId next = 0;
  std::int64_t steps = 0;
  std::int64_t calls = 0;
  for (auto unused : state) {
    RequestSpec spec;
    spec.id = next++;
    spec.prompt_len = Tokens{
        1 + std::min<std::int64_t>(8000, static_cast<std::int64_t>(exponential1(lengths) * 1155))};
    spec.max_output = Tokens{1 + static_cast<std::int64_t>(exponential1(lengths) * 211)};
    scheduler.add(spec);
    while (scheduler.running() + scheduler.waiting() >= state.range(0)) {
      if (const std::int64_t n = scheduler.steady_steps(); n > 0) {
        scheduler.advance_steady(n);
        steps += n;
      } else {
        round(scheduler);
        ++steps;
      }
      ++calls;
    }
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["steps_per_request"] =
      static_cast<double>(steps) / static_cast<double>(state.iterations());
  state.counters["calls_per_request"] =
      static_cast<double>(calls) / static_cast<double>(state.iterations());
}
BENCHMARK(length_only_trace)->ArgNames({"running", "async"})->ArgsProduct({{16, 64, 256}, {0, 1}});

// Prompts of segments of 512 tokens as traces with block ids have them: a system prompt, a session
// that grows, new text; 7.6k tokens in the mean.
void shared_prefix_trace(benchmark::State& state) {
  SchedulerConfig config = roomy(1024, true);
  config.max_model_len = Tokens{131072};
  config.num_gpu_blocks = Blocks{27500};
  Scheduler scheduler(config);
  RandomStream random = random_stream(1, "bench.sessions");
  std::vector<ContentSegment> prompt;
  RequestId next = 0;
  std::uint64_t fresh = 1 << 20;
  for (auto unused : state) {
    prompt.clear();
    const auto session = static_cast<std::uint64_t>(uniform_int(random, 0, 200));
    const std::int64_t turns = uniform_int(random, 1, 20);
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      prompt.push_back({session * 100 + static_cast<std::uint64_t>(turn), Tokens{512}});
    }
    for (int i = 0; i < 4; ++i) {
      prompt.push_back({fresh++, Tokens{512}});
    }
    RequestSpec spec;
    spec.id = next++;
    spec.prompt = prompt;
    spec.prompt_len = Tokens{512 * static_cast<std::int64_t>(prompt.size()) - 7};
    spec.max_output = Tokens{1 + static_cast<std::int64_t>(exponential1(random) * 343)};
    scheduler.add(spec);
    while (scheduler.running() + scheduler.waiting() >= 24) {
      if (const std::int64_t n = scheduler.steady_steps(); n > 0) {
        scheduler.advance_steady(n);
      } else {
        round(scheduler);
      }
    }
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["hit_tokens_per_request"] =
      static_cast<double>(scheduler.prefix_hit_tokens().count()) /
      static_cast<double>(state.iterations());
}
BENCHMARK(shared_prefix_trace);

}  // namespace
}  // namespace oomcast::vllm
