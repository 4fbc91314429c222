// Random small deployments and workloads: fast-forward leaves the state of single steps, content
// that nobody shares needs no index to be treated right, and no block is ever lost.
//
// OOMCAST_PROPERTY_CASES sets how many cases run (default 1500).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "tests/property/cases.hpp"

namespace oomcast::vllm {
namespace {

using SchedulerProperty = PropertyTest;

struct Arrival {
  std::int64_t step = 0;
  std::int64_t abort_step = -1;
  RequestSpec spec;
  std::vector<ContentSegment> prompt;
};

struct Case {
  SchedulerConfig config;
  std::vector<Arrival> arrivals;  // by step; ids are positions
  std::int64_t last_abort = 0;
};

class Generator : private RandomCase {
 public:
  explicit Generator(std::int64_t seed)
      : RandomCase(random_stream(static_cast<std::uint64_t>(seed), "property.scheduler")) {}

  Case plain();
  Case any_model();

 private:
  void settings(SchedulerConfig& config);
  void groups(SchedulerConfig& config);
  void workload(Case& made);
};

void Generator::settings(SchedulerConfig& config) {
  constexpr int kMinors[] = {14, 19, 20, 22, 24, 26, 29, 31, 33};
  config.rules = rules_for(Version{{0, kMinors[number(0, 8)], 0}});
  config.max_num_seqs = number(1, 12);
  config.max_num_batched_tokens = Tokens{number(4, 96)};
  config.max_model_len = Tokens{number(24, 200)};
  config.num_gpu_blocks = Blocks{number(4, 60)};
  config.enable_prefix_caching = chance(75);
  config.enable_chunked_prefill = chance(85);
  config.scheduler_reserve_full_isl = chance(75);
  config.policy = chance(25) ? SchedulerConfig::Policy::kPriority : SchedulerConfig::Policy::kFcfs;
  config.async_scheduling = chance(50);
  config.long_prefill_token_threshold = Tokens{chance(15) ? number(1, 20) : 0};
  config.watermark = chance(15) ? 0.1 : 0.0;
}

void Generator::groups(SchedulerConfig& config) {
  config.groups.clear();
  KvGroup full;
  full.block_size = Tokens{std::int64_t{1} << number(1, 4)};
  config.groups.push_back(full);
  if (chance(20)) {
    config.groups.push_back(full);
  }
}

void Generator::workload(Case& made) {
  const std::int64_t longest = made.config.max_model_len.count();
  const std::int64_t requests = number(1, 24);
  const std::int64_t spread = number(1, 120);
  const bool popular = chance(60);
  for (std::int64_t i = 0; i < requests; ++i) {
    Arrival arrival;
    arrival.step = number(0, spread);
    arrival.abort_step = chance(8) ? arrival.step + number(0, 60) : -1;
    RequestSpec& spec = arrival.spec;
    spec.arrival_time = static_cast<double>(arrival.step);
    spec.priority = number(0, 2);
    spec.prompt_len = Tokens{number(0, 100) < 95 ? number(1, std::min<std::int64_t>(longest, 80))
                                                 : number(0, longest + 4)};
    spec.max_output = Tokens{number(1, chance(30) ? 150 : 30)};
    if (popular && chance(70)) {
      arrival.prompt.push_back({static_cast<std::uint64_t>(number(1, 3)), Tokens{number(1, 50)}});
      if (chance(50)) {
        arrival.prompt.push_back({static_cast<std::uint64_t>(number(1, 5)), Tokens{number(1, 40)}});
      }
    }
    if (chance(40)) {
      spec.output_content = static_cast<std::uint64_t>(number(1, 5));
    }
    made.arrivals.push_back(std::move(arrival));
  }
  std::stable_sort(
      made.arrivals.begin(), made.arrivals.end(),
      [](const Arrival& left, const Arrival& right) { return left.step < right.step; });
  for (std::size_t i = 0; i < made.arrivals.size(); ++i) {
    made.arrivals[i].spec.id = i;
    made.arrivals[i].spec.prompt = made.arrivals[i].prompt;
    made.last_abort = std::max(made.last_abort, made.arrivals[i].abort_step);
  }
}

Case Generator::plain() {
  Case made;
  settings(made.config);
  groups(made.config);
  workload(made);
  return made;
}

// Windows, states, drafts, pipeline stages: whatever no fast-forward exists for.
Case Generator::any_model() {
  Case made;
  settings(made.config);
  SchedulerConfig& config = made.config;
  config.groups.clear();
  KvGroup full;
  full.block_size = Tokens{8};
  config.groups.push_back(full);
  KvGroup other = full;
  const std::int64_t kind = number(0, 3);
  if (kind == 1) {
    other.type = KvGroup::Type::kSlidingWindow;
    other.window = Tokens{number(2, 40)};
    other.block_size = Tokens{chance(30) && config.rules.aligned_hashing ? 4 : 8};
  } else if (kind == 2) {
    other.type = KvGroup::Type::kChunkedLocal;
    other.window = Tokens{8 * number(1, 4)};
  } else if (kind == 3) {
    other.type = KvGroup::Type::kMamba;
    other.mamba_mode =
        config.enable_prefix_caching ? KvGroup::MambaMode::kAlign : KvGroup::MambaMode::kNone;
    if (chance(30) && config.rules.mamba_fine_hits) {
      config.prefix_match_unit = Tokens{4};
    }
  }
  if (kind > 0) {
    config.groups.push_back(other);
  }
  if (kind < 2 && chance(50)) {
    config.spec.method = SpecDecode::Method::kNgram;
    config.spec.num_speculative_tokens = number(1, 4);
    config.spec.accept = {0, 2, 1, 4};
    if (chance(40)) {
      config.spec.method = SpecDecode::Method::kEagle;
      config.spec.lookahead_block_hashes = chance(50);
    }
  }
  config.pipeline_parallel_size = chance(30) ? 2 : 1;
  if (chance(20)) {
    config.prefill_schedule_interval = 3;
  }
  workload(made);
  return made;
}

// One scheduler on a case's clock.
class Runner {
 public:
  Runner(const Case& made, bool detail)
      : case_(made), scheduler_([&] {
          SchedulerConfig config = made.config;
          config.detail = detail;
          return config;
        }()) {}

  Scheduler& scheduler() { return scheduler_; }
  [[nodiscard]] std::int64_t now() const { return now_; }
  [[nodiscard]] bool over() const {
    return (next_ == case_.arrivals.size() && now_ > case_.last_abort && scheduler_.idle()) ||
           now_ > 4000;
  }

  void round() {
    while (next_ < case_.arrivals.size() && case_.arrivals[next_].step <= now_) {
      added.push_back(scheduler_.add(case_.arrivals[next_++].spec));
    }
    for (const Arrival& arrival : case_.arrivals) {
      if (arrival.abort_step == now_) {
        scheduler_.abort(arrival.spec.id);
      }
    }
    plan = &scheduler_.schedule();
    output =
        scheduler_.batches_in_flight() == scheduler_.depth() ? &scheduler_.complete() : nullptr;
    ++now_;
  }

  // Steps until the clock next touches the scheduler.
  [[nodiscard]] std::int64_t undisturbed() const {
    std::int64_t until = next_ < case_.arrivals.size() ? case_.arrivals[next_].step : now_ + 1000;
    for (const Arrival& arrival : case_.arrivals) {
      if (arrival.abort_step >= now_) {
        until = std::min(until, arrival.abort_step);
      }
    }
    return until - now_;
  }
  const SteadyJump& jump(std::int64_t steps) {
    now_ += steps;
    return scheduler_.advance_steady(steps);
  }

  const StepPlan* plan = nullptr;
  const StepOutput* output = nullptr;
  std::vector<Added> added;

 private:
  const Case& case_;
  Scheduler scheduler_;
  std::size_t next_ = 0;
  std::int64_t now_ = 0;
};

void expect_same_plan(const StepPlan& left, const StepPlan& right) {
  ASSERT_EQ(left.step, right.step);
  ASSERT_EQ(left.tokens, right.tokens);
  ASSERT_EQ(left.requests, right.requests);
  ASSERT_EQ(left.sampled_rows, right.sampled_rows);
  ASSERT_EQ(left.sampling_requests, right.sampling_requests);
  ASSERT_EQ(left.decode_requests, right.decode_requests);
  ASSERT_EQ(left.decode_context, right.decode_context);
  ASSERT_EQ(left.prefill_requests, right.prefill_requests);
  ASSERT_EQ(left.prefill_tokens, right.prefill_tokens);
  ASSERT_EQ(left.prefill_attention, right.prefill_attention);
  ASSERT_EQ(left.preempted, right.preempted);
  ASSERT_EQ(left.admitted.size(), right.admitted.size());
  for (std::size_t i = 0; i < left.admitted.size(); ++i) {
    ASSERT_EQ(left.admitted[i].id, right.admitted[i].id);
    ASSERT_EQ(left.admitted[i].hit, right.admitted[i].hit);
    ASSERT_EQ(left.admitted[i].resumed, right.admitted[i].resumed);
  }
  ASSERT_EQ(left.blocks.free, right.blocks.free);
  ASSERT_EQ(left.running, right.running);
  ASSERT_EQ(left.waiting, right.waiting);
}

void expect_same_output(const StepOutput* left, const StepOutput* right) {
  ASSERT_EQ(left == nullptr, right == nullptr);
  if (left != nullptr) {
    ASSERT_EQ(left->step, right->step);
    ASSERT_EQ(left->sampled, right->sampled);
    ASSERT_EQ(left->finished, right->finished);
    ASSERT_EQ(left->first_token, right->first_token);
  }
}

// A single round in place of the i-th of a jump: results come with the first.
void expect_as_jumped(const Runner& single, const SteadyJump& jump, std::int64_t i) {
  using Ids = std::vector<RequestId>;
  const StepPlan& plan = *single.plan;
  EXPECT_TRUE(plan.admitted.empty() && plan.preempted.empty() && plan.prefill_requests == 0);
  EXPECT_EQ(plan.decode_requests, jump.decode_requests);
  if (single.output != nullptr) {
    const bool first = i == 0;
    EXPECT_EQ(single.output->first_token,
              first ? Ids(jump.first_token.begin(), jump.first_token.end()) : Ids{});
    EXPECT_EQ(single.output->finished,
              first ? Ids(jump.finished.begin(), jump.finished.end()) : Ids{});
  }
  if (i <= 1) {
    EXPECT_EQ(plan.blocks.free, i == 0 ? jump.first.free : jump.second.free);
  }
  if (i + 1 == jump.steps) {
    EXPECT_EQ(plan.blocks.free, jump.last.free);
  }
}

void expect_conserved(Runner& runner) {
  runner.scheduler().check_conservation();
  const PoolCounts blocks = runner.scheduler().blocks();
  ASSERT_EQ(blocks.free + blocks.used, blocks.total);
  ASSERT_LE(blocks.cached, blocks.free);
}

struct Jumped {
  std::int64_t steps = 0;
  std::int64_t over_ends = 0;
};

// Single steps one by one beside a run that jumps wherever it may (mostly as far as it may).
Jumped compare_fast_forward(const Case& made, RandomStream& random) {
  Runner slow(made, true);
  Runner fast(made, false);
  Jumped jumped;
  while (!slow.over()) {
    SCOPED_TRACE("step " + std::to_string(slow.now()));
    slow.round();
    fast.round();
    expect_same_plan(*slow.plan, *fast.plan);
    expect_same_output(slow.output, fast.output);
    expect_conserved(slow);
    expect_conserved(fast);
    EXPECT_EQ(slow.scheduler().state_digest(), fast.scheduler().state_digest());
    std::int64_t steps =
        fast.undisturbed() > 0 ? fast.scheduler().steady_steps(fast.undisturbed()) : 0;
    if (steps > 1 && uniform_int(random, 0, 3) == 0) {
      steps = uniform_int(random, 1, steps);
    }
    if (steps > 0) {
      const SteadyJump& jump = fast.jump(steps);
      for (std::int64_t i = 0; i < steps; ++i) {
        slow.round();
        expect_as_jumped(slow, jump, i);
      }
      jumped.over_ends += std::ssize(jump.finished);
      jumped.steps += steps;
      EXPECT_EQ(slow.scheduler().state_digest(), fast.scheduler().state_digest());
      expect_conserved(fast);
    }
    if (testing::Test::HasFailure()) {
      break;
    }
  }
  return jumped;
}

TEST_F(SchedulerProperty, FastForwardLeavesTheStateOfSingleSteps) {
  Jumped jumped;
  for (std::int64_t seed = 0; seed < property_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    current_seed = seed;
    RandomStream random = random_stream(static_cast<std::uint64_t>(seed), "property.jumps");
    const Jumped more = compare_fast_forward(Generator(seed).plain(), random);
    jumped = {jumped.steps + more.steps, jumped.over_ends + more.over_ends};
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(jumped.steps, 10 * property_cases());  // there was something to jump over
  EXPECT_GT(jumped.over_ends, property_cases() / 10);
}

// The same content, once as "nobody shares it" and once under ids of its own that are indexed.
TEST_F(SchedulerProperty, UnsharedContentNeedsNoIndex) {
  for (std::int64_t seed = 0; seed < property_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    current_seed = seed;
    const Case unshared = Generator(seed).plain();
    Case named = unshared;
    for (std::size_t i = 0; i < named.arrivals.size(); ++i) {
      Arrival& arrival = named.arrivals[i];
      arrival.prompt.push_back({1000 + 2 * i, Tokens{1000}});
      arrival.spec.prompt = arrival.prompt;
      if (!arrival.spec.output_content) {
        arrival.spec.output_content = 1001 + 2 * i;
      }
    }
    Runner left(unshared, true);
    Runner right(named, true);
    while (!left.over() && !HasFailure()) {
      left.round();
      right.round();
      expect_same_plan(*left.plan, *right.plan);
      expect_same_output(left.output, right.output);
      EXPECT_EQ(left.plan->detail_blocks, right.plan->detail_blocks);
      EXPECT_EQ(left.scheduler().blocks().cached, right.scheduler().blocks().cached);
    }
    ASSERT_FALSE(HasFailure());
  }
}

// Models without fast-forward: blocks are conserved in every step, all requests end, and two runs
// are the same run.
TEST_F(SchedulerProperty, EveryModelConservesBlocksAndRepeatsItself) {
  for (std::int64_t seed = 0; seed < property_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    current_seed = seed;
    const Case made = Generator(seed).any_model();
    Runner first(made, true);
    Runner second(made, false);
    while (!first.over() && !HasFailure()) {
      first.round();
      second.round();
      expect_same_plan(*first.plan, *second.plan);
      expect_same_output(first.output, second.output);
      expect_conserved(first);
      EXPECT_EQ(first.scheduler().state_digest(), second.scheduler().state_digest());
      if (first.scheduler().stall() && first.undisturbed() >= 1000) {
        break;  // the head never fits and nobody is coming: the engine waits for ever
      }
    }
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace oomcast::vllm
