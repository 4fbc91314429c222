// Random small deployments and workloads of SGLang's scheduler: fast-forward leaves the state of
// single steps, no slot is ever lost, locks return to zero, every request ends once with the output
// it should have, and two runs are the same run.
//
// OOMCAST_PROPERTY_CASES sets how many cases run (default 1500).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/engines/sglang/scheduler.hpp"
#include "tests/property/cases.hpp"
#include "tests/property/sglang_cases.hpp"

namespace oomcast::sglang {
namespace {

using SglangSchedulerProperty = PropertyTest;

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
    std::erase_if(copies_, [&](const Copy& copy) {
      return copy.over <= now_ && scheduler_.copy_done(copy.job);
    });
    plan = &scheduler_.schedule();
    loaded += plan->host.load ? plan->host.load->tokens.count() : 0;
    written_back += plan->host.awaited.count();
    begin(plan->host.write);
    begin(plan->host.load);
    output =
        scheduler_.batches_in_flight() == scheduler_.depth() ? &scheduler_.complete() : nullptr;
    if (output != nullptr) {
      begin(output->write);
    }
    ++now_;
  }
  [[nodiscard]] bool copies_under_way() const { return !copies_.empty(); }

  // Steps until the clock next touches the scheduler.
  [[nodiscard]] std::int64_t undisturbed() const {
    std::int64_t until = next_ < case_.arrivals.size() ? case_.arrivals[next_].step : now_ + 1000;
    for (const Arrival& arrival : case_.arrivals) {
      if (arrival.abort_step >= now_) {
        until = std::min(until, arrival.abort_step);
      }
    }
    for (const Copy& copy : copies_) {
      until = std::min(until, copy.over);
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
  std::int64_t loaded = 0;  // tokens
  std::int64_t written_back = 0;

 private:
  struct Copy {
    std::int64_t over = 0;
    std::int64_t job = 0;
  };
  void begin(const std::optional<HostCopy>& copy) {
    if (copy) {
      copies_.push_back({now_ + copy->job * 7 % (case_.longest_copy + 1), copy->job});
    }
  }

  const Case& case_;
  Scheduler scheduler_;
  std::vector<Copy> copies_;
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
  ASSERT_EQ(left.state_slots.free, right.state_slots.free);
  ASSERT_EQ(left.state_slots.cached, right.state_slots.cached);
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

struct Seen {
  std::int64_t jumped = 0;  // rounds
  std::int64_t loaded = 0;  // tokens from the host
  std::int64_t written_back = 0;
  std::int64_t states_kept = 0;  // by the tree at the end
};

// Single steps one by one beside a run that jumps wherever it may (mostly as far as it may).
Seen compare_fast_forward(const Case& made, RandomStream& random) {
  Runner slow(made, true);
  Runner fast(made, false);
  Ends ends(made);
  Ends fast_ends(made);
  Seen seen;
  while (!slow.over() && !testing::Test::HasFailure()) {
    SCOPED_TRACE("step " + std::to_string(slow.now()));
    slow.round();
    fast.round();
    ends.see(slow);
    fast_ends.see(fast);
    expect_same_plan(*slow.plan, *fast.plan);
    expect_same_output(slow.output, fast.output);
    if (slow.plan->error != EngineError::kNone) {
      return seen;  // the engine is dead; what it held is not looked at
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
      seen.jumped += steps;
      EXPECT_EQ(slow.scheduler().state_digest(), fast.scheduler().state_digest());
      expect_conserved(fast);
    }
    if (slow.all_came() && slow.undisturbed() >= 1000 && slow.scheduler().stall()) {
      expect_stuck(slow);  // nobody is coming: the engine waits for ever
      return seen;
    }
  }
  if (slow.now() <= 4000 && !testing::Test::HasFailure()) {
    while (slow.copies_under_way()) {
      slow.round();
    }
    expect_conserved(slow);
    ends.expect_complete(slow.added);
    fast_ends.expect_complete(fast.added);
    EXPECT_EQ(slow.scheduler().slots().used, Tokens{});
    EXPECT_EQ(slow.scheduler().state_slots().used, 0);
  }
  seen.states_kept = slow.scheduler().state_slots().cached;
  seen.loaded = slow.loaded;
  seen.written_back = slow.written_back;
  return seen;
}

TEST_F(SglangSchedulerProperty, FastForwardConservationAndEnds) {
  Seen sum;
  for (std::int64_t seed = 0; seed < property_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    current_seed = seed;
    RandomStream random = random_stream(static_cast<std::uint64_t>(seed), "property.jumps");
    const Seen seen = compare_fast_forward(Generator(seed).any(), random);
    sum.jumped += seen.jumped;
    sum.loaded += seen.loaded;
    sum.written_back += seen.written_back;
    sum.states_kept += seen.states_kept;
    ASSERT_FALSE(HasFailure());
  }
  // There was something to jump over, host tiers had work, and trees had states.
  EXPECT_GT(sum.jumped, 10 * property_cases());
  EXPECT_GT(sum.loaded, property_cases());
  EXPECT_GT(sum.written_back, property_cases());
  EXPECT_GT(sum.states_kept, property_cases() / 4);
}

}  // namespace
}  // namespace oomcast::sglang
