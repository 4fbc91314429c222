// Random small deployments and workloads of SGLang's scheduler: fast-forward leaves the state of
// single steps, no slot is ever lost, locks return to zero, every request ends once with the output
// it should have, and two runs are the same run.
//
// OOMCAST_PROPERTY_CASES sets how many cases run (default 1500).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/engines/sglang/scheduler.hpp"
#include "tests/property/cases.hpp"

namespace oomcast::sglang {
namespace {

using SglangSchedulerProperty = PropertyTest;

struct Arrival {
  std::int64_t step = 0;
  std::int64_t abort_step = -1;
  RequestSpec spec;
  std::vector<ContentSegment> prompt;
};

struct Case {
  SchedulerConfig config;
  std::vector<Arrival> arrivals;  // by step; ids are positions
};

class Generator {
 public:
  explicit Generator(std::int64_t seed)
      : random_(random_stream(static_cast<std::uint64_t>(seed), "property.sglang")) {}

  Case any() {
    Case made;
    settings(made.config);
    workload(made);
    return made;
  }

 private:
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return uniform_int(random_, low, high);
  }
  bool chance(std::int64_t percent) { return number(1, 100) <= percent; }
  void settings(SchedulerConfig& config);
  void window(SchedulerConfig& config);
  void role(SchedulerConfig& config);
  void workload(Case& made);

  RandomStream random_;
};

void Generator::settings(SchedulerConfig& config) {
  config.rules = rules_for(Version{{0, 5, chance(50) ? 23 : static_cast<int>(number(8, 23))}});
  const std::int64_t page = chance(50) ? 1 : std::int64_t{1} << number(1, 4);
  config.page_size = Tokens{page};
  config.pool_tokens = Tokens{page * number(std::max<std::int64_t>(40 / page, 3), 400 / page + 4)};
  config.context_length = Tokens{number(40, 400)};
  config.max_running_requests = number(1, 14);
  if (chance(75)) {
    config.chunked_prefill_size = Tokens{page * number(1, 6)};
  }
  config.max_prefill_tokens = Tokens{number(4, 200)};
  constexpr SchedulePolicy kPolicies[] = {
      SchedulePolicy::kFcfs,       SchedulePolicy::kFcfs,           SchedulePolicy::kLof,
      SchedulePolicy::kLpm,        SchedulePolicy::kDfsWeight,      SchedulePolicy::kHrrn,
      SchedulePolicy::kRoutingKey, SchedulePolicy::kShortestPrefill};
  config.schedule_policy = kPolicies[number(0, 7)];
  config.schedule_conservativeness = chance(50) ? 1.0 : static_cast<double>(number(0, 100)) / 100;
  config.disable_radix_cache =
      config.schedule_policy != SchedulePolicy::kShortestPrefill && chance(25);
  config.enable_mixed_chunk = chance(25);
  config.disable_overlap_schedule = chance(50);
  config.radix_eviction_policy = static_cast<EvictionPolicy>(number(0, 7));
  if (chance(50)) {
    config.radix_eviction_policy = EvictionPolicy::kLru;
  }
  config.tlru_threshold = Tokens{number(0, 60)};
  config.retraction_policy = chance(20) ? RetractionPolicy::kPriority : RetractionPolicy::kLength;
  config.enable_priority_scheduling = chance(25);
  config.schedule_low_priority_values_first = chance(50);
  config.disable_priority_preemption = chance(30);
  config.priority_scheduling_preemption_threshold = number(0, 4);
  if (chance(10)) {
    config.prefill_max_requests = number(1, 4);
  }
  if (chance(10)) {
    config.max_queued_requests = number(1, 8);
  }
  if (chance(10)) {
    config.min_free_slots_delay = number(1, 5);
  }
  if (chance(10)) {
    config.prefill_decode_interval = number(1, 4);
    config.prefill_decode_interval_min_bs = number(0, 4);
  }
  config.clip_max_new_tokens_estimation = Tokens{chance(30) ? number(1, 30) : 4096};
  if (config.rules.sliding_window_pools && chance(25)) {
    window(config);
  } else if (config.rules.disaggregation && chance(20)) {
    role(config);
  }
}

void Generator::window(SchedulerConfig& config) {
  const std::int64_t page = config.page_size.count();
  config.enable_mixed_chunk = false;
  config.sliding_window = Tokens{number(1, 60)};
  config.swa_eviction_interval = Tokens{number(1, 40)};
  const std::int64_t least = align_up(config.sliding_window.count() + page + 1, page);
  config.swa_pool_tokens = Tokens{least + page * number(2, 200 / page + 2)};
}

void Generator::role(SchedulerConfig& config) {
  config.role = chance(50) ? Role::kPrefill : Role::kDecode;
  config.enable_priority_scheduling = false;
  config.enable_mixed_chunk = false;
  config.transfer_steps = number(0, 5);
  config.extra_rows = number(0, 8);
  config.num_reserved_decode_tokens = Tokens{number(0, 40)};
  if (config.role == Role::kDecode) {
    config.disable_radix_cache = true;
    config.schedule_policy = SchedulePolicy::kFcfs;
  } else {
    config.extra_rows = 0;
  }
}

void Generator::workload(Case& made) {
  const std::int64_t longest = made.config.context_length.count();
  const std::int64_t requests = number(1, 24);
  const std::int64_t spread = number(1, 120);
  const bool popular = chance(60);
  for (std::int64_t i = 0; i < requests; ++i) {
    Arrival arrival;
    arrival.step = number(0, spread);
    arrival.abort_step = chance(8) ? arrival.step + number(0, 60) : -1;
    RequestSpec& spec = arrival.spec;
    if (chance(70)) {
      spec.priority = number(0, 8);
    }
    spec.routing_key = static_cast<std::uint64_t>(number(0, 3));
    spec.prompt_len = Tokens{chance(95) ? number(1, std::min<std::int64_t>(longest, 120))
                                        : number(0, longest + 4)};
    spec.max_output = Tokens{number(chance(5) ? 0 : 1, chance(30) ? 150 : 30)};
    if (chance(40)) {
      spec.stop_after = Tokens{number(1, spec.max_output.count() + 5)};
    }
    spec.ignore_eos = chance(20);
    if (popular && chance(70)) {
      arrival.prompt.push_back({static_cast<std::uint64_t>(number(1, 3)), Tokens{number(1, 80)}});
      if (chance(50)) {
        arrival.prompt.push_back({static_cast<std::uint64_t>(number(1, 5)), Tokens{number(1, 60)}});
      }
      spec.output_continues_prompt = chance(20);
    }
    if (chance(40)) {
      spec.output_content = static_cast<std::uint64_t>(number(1, 5));
    }
    if (chance(50)) {
      spec.end_token = ContentToken{0, 2};
    }
    made.arrivals.push_back(std::move(arrival));
  }
  std::stable_sort(
      made.arrivals.begin(), made.arrivals.end(),
      [](const Arrival& left, const Arrival& right) { return left.step < right.step; });
  for (std::size_t i = 0; i < made.arrivals.size(); ++i) {
    made.arrivals[i].spec.id = i;
    made.arrivals[i].spec.tie_order = i;
    made.arrivals[i].spec.prompt = made.arrivals[i].prompt;
  }
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
  [[nodiscard]] bool all_came() const { return next_ == case_.arrivals.size(); }
  [[nodiscard]] bool over() const {
    return (all_came() && scheduler_.idle()) || now_ > 4000 ||
           (plan != nullptr && plan->error != EngineError::kNone);
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
  ASSERT_EQ(left.kind, right.kind);
  ASSERT_EQ(left.tokens, right.tokens);
  ASSERT_EQ(left.requests, right.requests);
  ASSERT_EQ(left.sampling_requests, right.sampling_requests);
  ASSERT_EQ(left.decode_requests, right.decode_requests);
  ASSERT_EQ(left.decode_context, right.decode_context);
  ASSERT_EQ(left.prefill_tokens, right.prefill_tokens);
  ASSERT_EQ(left.prefill_attention, right.prefill_attention);
  ASSERT_EQ(left.retracted, right.retracted);
  ASSERT_EQ(left.preempted, right.preempted);
  ASSERT_EQ(left.aborted, right.aborted);
  ASSERT_EQ(left.error, right.error);
  ASSERT_EQ(left.admitted.size(), right.admitted.size());
  ASSERT_EQ(left.slots.free, right.slots.free);
  ASSERT_EQ(left.slots.cached, right.slots.cached);
  ASSERT_EQ(left.running, right.running);
  ASSERT_EQ(left.waiting, right.waiting);
}

void expect_same_output(const StepOutput* left, const StepOutput* right) {
  ASSERT_EQ(left == nullptr, right == nullptr);
  if (left != nullptr) {
    ASSERT_EQ(left->step, right->step);
    ASSERT_EQ(left->sampled, right->sampled);
    ASSERT_EQ(left->first_token, right->first_token);
    ASSERT_EQ(left->finished.size(), right->finished.size());
    for (std::size_t i = 0; i < left->finished.size(); ++i) {
      ASSERT_EQ(left->finished[i].id, right->finished[i].id);
      ASSERT_EQ(left->finished[i].output, right->finished[i].output);
    }
  }
}

void expect_conserved(Runner& runner) {
  runner.scheduler().check_conservation();
  const PoolCounts slots = runner.scheduler().slots();
  ASSERT_EQ(slots.free + slots.cached + slots.used, slots.total);
  ASSERT_GE(slots.used.count(), 0);
}

// What became of every request.
class Ends {
 public:
  explicit Ends(const Case& made) : case_(made) {}

  void see(const Runner& runner) {
    for (const RequestId id : runner.plan->aborted) {
      ++ends_[id];
      aborted_ = true;
    }
    for (const FinishedRequest& request : runner.plan->transfers.finished) {
      see(request);
    }
    if (runner.output != nullptr) {
      sampled_ += runner.output->sampled.count();
      for (const FinishedRequest& request : runner.output->finished) {
        see(request);
      }
    }
  }
  void see_jump(const SteadyJump& jump) { sampled_ += jump.steps * jump.decode_requests; }

  void expect_complete(const std::vector<Added>& added) {
    std::size_t refused = 0;
    for (std::size_t id = 0; id < added.size(); ++id) {
      const bool entered = added[id] != Added::kEmptyPrompt && added[id] != Added::kNoOutput;
      refused += entered ? 0 : 1;
      EXPECT_EQ(ends_[id], entered ? 1 : 0) << "request " << id;
    }
    EXPECT_LE(refused, added.size());
    if (!aborted_ && case_.config.role != Role::kDecode) {
      EXPECT_EQ(sampled_, outputs_);
    }
  }

 private:
  void see(const FinishedRequest& request) {
    ++ends_[request.id];
    outputs_ += request.output.count();
    const RequestSpec& spec = case_.arrivals[request.id].spec;
    const std::int64_t most = std::max<std::int64_t>(spec.max_output.count(), 1);
    EXPECT_LE(request.output.count(), most);
    if (request.reason == FinishReason::kStop) {
      EXPECT_EQ(request.output, spec.stop_after);
      EXPECT_FALSE(spec.ignore_eos);
    } else if (request.reason == FinishReason::kLength && spec.stop_after && !spec.ignore_eos) {
      EXPECT_LE(request.output, *spec.stop_after);
    }
  }

  const Case& case_;
  std::map<RequestId, int> ends_;
  std::int64_t sampled_ = 0;
  std::int64_t outputs_ = 0;
  bool aborted_ = false;
};

void expect_stuck(Runner& runner) {
  for (int i = 0; i < 40; ++i) {
    runner.round();
    EXPECT_EQ(runner.plan->kind, Kind::kIdle);
    EXPECT_TRUE(runner.scheduler().stall());
  }
}

// Single steps one by one beside a run that jumps wherever it may (mostly as far as it may).
std::int64_t compare_fast_forward(const Case& made, RandomStream& random) {
  Runner slow(made, true);
  Runner fast(made, false);
  Ends ends(made);
  Ends fast_ends(made);
  std::int64_t jumped = 0;
  while (!slow.over() && !testing::Test::HasFailure()) {
    SCOPED_TRACE("step " + std::to_string(slow.now()));
    slow.round();
    fast.round();
    ends.see(slow);
    fast_ends.see(fast);
    expect_same_plan(*slow.plan, *fast.plan);
    expect_same_output(slow.output, fast.output);
    if (slow.plan->error != EngineError::kNone) {
      return jumped;  // the engine is dead; what it held is not looked at
    }
    expect_conserved(slow);
    expect_conserved(fast);
    EXPECT_EQ(slow.scheduler().state_digest(), fast.scheduler().state_digest());
    std::int64_t steps =
        fast.undisturbed() > 0 ? fast.scheduler().steady_steps(fast.undisturbed()) : 0;
    if (steps > 1 && uniform_int(random, 0, 3) == 0) {
      steps = uniform_int(random, 1, steps);
    }
    if (steps > 0) {
      const SteadyJump jump = fast.jump(steps);
      fast_ends.see_jump(jump);
      for (std::int64_t i = 0; i < steps; ++i) {
        slow.round();
        ends.see(slow);
        EXPECT_EQ(slow.plan->kind, Kind::kDecode);
        EXPECT_EQ(slow.plan->decode_context.count(),
                  jump.first_context.count() + i * jump.decode_requests);
        EXPECT_TRUE(slow.plan->retracted.empty() && slow.plan->aborted.empty() &&
                    (slow.output == nullptr || slow.output->finished.empty()));
        const PoolCounts& expected = i == 0 ? jump.first : jump.last;
        EXPECT_TRUE((i > 0 && i < steps - 1) || slow.plan->slots.free == expected.free);
      }
      jumped += steps;
      EXPECT_EQ(slow.scheduler().state_digest(), fast.scheduler().state_digest());
      expect_conserved(fast);
    }
    if (slow.all_came() && slow.undisturbed() >= 1000 && slow.scheduler().stall()) {
      expect_stuck(slow);  // nobody is coming: the engine waits for ever
      return jumped;
    }
  }
  if (slow.now() <= 4000 && !testing::Test::HasFailure()) {
    ends.expect_complete(slow.added);
    fast_ends.expect_complete(fast.added);
    EXPECT_EQ(slow.scheduler().slots().used, Tokens{});
  }
  return jumped;
}

TEST_F(SglangSchedulerProperty, FastForwardConservationAndEnds) {
  std::int64_t jumped = 0;
  for (std::int64_t seed = 0; seed < property_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    current_seed = seed;
    RandomStream random = random_stream(static_cast<std::uint64_t>(seed), "property.jumps");
    jumped += compare_fast_forward(Generator(seed).any(), random);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(jumped, 10 * property_cases());  // there was something to jump over
}

}  // namespace
}  // namespace oomcast::sglang
