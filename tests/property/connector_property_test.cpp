// Random deployments with a KV connector and random workers: no block is ever lost or in two
// places, whatever fails, is aborted or comes late; and once all have left, the pool is empty
// again.
//
// OOMCAST_PROPERTY_CASES sets how many cases run (default 1500).
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "sim/core/random.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "tests/property/cases.hpp"

namespace oomcast::vllm {
namespace {

using ConnectorProperty = PropertyTest;
using Remote = KvTransferParams::Remote;

// Random workers: each transfer takes a few rounds, some receives fail.
class Workers {
 public:
  Workers(RandomStream& random, std::int64_t slowest, bool single_group)
      : random_(random), slowest_(slowest), single_group_(single_group) {}

  void start(const StepTransfers& transfers) {
    for (const Receive& receive : transfers.receives) {
      Pending pending;
      pending.received = true;
      pending.id = receive.id;
      const std::int64_t luck = uniform_int(random_, 0, 9);
      pending.failed = luck == 0;
      if (luck == 1 && single_group_) {
        const BlockIds& blocks = receive.blocks.front();
        pending.bad = {blocks[static_cast<std::size_t>(
            uniform_int(random_, 0, static_cast<std::int64_t>(blocks.size()) - 1))]};
      }
      add(pending, slowest_);
    }
    for (const RequestId id : transfers.sends) {
      Pending pending;
      pending.id = id;
      pending.sent = true;
      add(pending, 3 * slowest_);
    }
    for (const LoadJob& load : transfers.loads) {
      add_job(load.job, load.synchronous ? 0 : slowest_);
    }
    for (const StoreJob& store : transfers.stores) {
      add_job(store.job, slowest_);
    }
    for (const JobId job : transfers.flushes) {
      for (Pending& pending : pending_) {
        if (pending.job == job) {
          pending.rounds = 0;
        }
      }
    }
  }

  const TransferReport& end_round() {
    report_.clear();
    std::erase_if(pending_, [&](Pending& pending) {
      if (pending.rounds-- > 0) {
        return false;
      }
      if (pending.received) {
        report_.received.push_back({pending.id, pending.failed, pending.bad});
      } else if (pending.sent) {
        report_.sent.push_back(pending.id);
      } else {
        report_.jobs.push_back(pending.job);
      }
      return true;
    });
    return report_;
  }

 private:
  struct Pending {
    std::int64_t rounds = 0;
    RequestId id = 0;
    bool received = false;
    bool sent = false;
    bool failed = false;
    BlockIds bad;
    JobId job = -1;
  };
  void add(Pending pending, std::int64_t slowest) {
    pending.rounds = uniform_int(random_, 0, slowest);
    pending_.push_back(std::move(pending));
  }
  void add_job(JobId job, std::int64_t slowest) {
    Pending pending;
    pending.job = job;
    add(pending, slowest);
  }

  RandomStream& random_;
  std::int64_t slowest_;
  bool single_group_;
  std::deque<Pending> pending_;
  TransferReport report_;
};

class ConnectorCase : private RandomCase {
 public:
  explicit ConnectorCase(std::int64_t seed)
      : RandomCase(random_stream(static_cast<std::uint64_t>(seed), "property.connector")) {
    settings();
  }

  void run() {
    Scheduler scheduler(config_);
    Workers workers(random_, number(0, 9), config_.groups.size() == 1);
    RequestId next = 0;
    const RequestId requests = static_cast<RequestId>(number(1, 40));
    for (std::int64_t round = 0; round < kRounds && (next < requests || !scheduler.idle());
         ++round) {
      for (; next < requests && chance(30); ++next) {
        add(scheduler, next);
      }
      if (next > 0 && chance(4)) {
        scheduler.abort(static_cast<RequestId>(number(0, static_cast<std::int64_t>(next) - 1)));
      }
      step(scheduler, workers);
    }
    // The head can never be admitted, or the engine runs in circles: a request that needs the whole
    // pool and a block more is preempted, and what was in flight of it is dropped.
    if (config_.scheduler_reserve_full_isl && !scheduler.idle() && !scheduler.stall()) {
      EXPECT_TRUE(schedules_within(scheduler, workers, kCircle));
    }
    for (RequestId id = 0; id < next; ++id) {
      scheduler.abort(id);
    }
    for (std::int64_t round = 0; round < kRounds && !scheduler.idle(); ++round) {
      step(scheduler, workers);
    }
    ASSERT_TRUE(scheduler.idle());
    const TransferCounts left = scheduler.transfers();
    EXPECT_EQ(scheduler.blocks().used, Blocks{});
    EXPECT_EQ(left.remote + left.held + left.host_writing, 0);
    EXPECT_EQ(left.deferred_blocks + left.held_blocks + left.remote_blocks, Blocks{});
    EXPECT_EQ(left.host_evictable, left.host_used);
  }

 private:
  static constexpr std::int64_t kRounds = 3000;
  static constexpr std::int64_t kCircle = 100;

  void settings() {
    config_.max_num_seqs = number(1, 10);
    config_.max_num_batched_tokens = Tokens{number(8, 96)};
    config_.max_model_len = Tokens{number(40, 200)};
    config_.num_gpu_blocks = Blocks{number(6, 60)};
    config_.enable_prefix_caching = chance(80);
    config_.async_scheduling = chance(50);
    config_.pipeline_parallel_size = chance(20) ? 2 : 1;
    config_.scheduler_reserve_full_isl = chance(80);
    config_.policy =
        chance(30) ? SchedulerConfig::Policy::kPriority : SchedulerConfig::Policy::kFcfs;
    config_.watermark = chance(20) ? 0.1 : 0.0;
    config_.groups.front().block_size = Tokens{8};
    if (chance(30)) {
      KvGroup window = config_.groups.front();
      window.type = KvGroup::Type::kSlidingWindow;
      window.window = Tokens{number(2, 40)};
      window.block_size = Tokens{chance(50) ? 4 : 8};
      config_.groups.push_back(window);
    } else if (chance(30)) {
      config_.spec.method = chance(50) ? SpecDecode::Method::kNgram : SpecDecode::Method::kEagle;
      config_.spec.num_speculative_tokens = number(1, 4);
      config_.spec.accept = {0, 2, 1, 4};
    }
    connector();
  }

  void connector() {
    ConnectorConfig connector;
    connector.role = static_cast<ConnectorConfig::Role>(number(0, 2));
    connector.load_failure_policy = static_cast<ConnectorConfig::LoadFailure>(number(0, 1));
    connector.host_buffer = chance(20);
    if (chance(50)) {
      connector.kind = ConnectorConfig::Kind::kOffloading;
      connector.host_chunks = number(1, 80);
      connector.blocks_per_chunk = chance(30) ? number(2, 3) : 1;
      connector.eviction_policy = static_cast<ConnectorConfig::Eviction>(number(0, 1));
      connector.store_threshold = chance(20) ? 2 : 0;
      connector.offload_prompt_only = chance(50);
      connector.bytes_per_token = Bytes{32};
      connector.sync_load_budget = Bytes{chance(30) ? number(1, 4096) : 0};
      connector.stores_end_with_request = chance(30);
      connector.skips_unsampled_chunks = connector.stores_end_with_request && chance(50);
      config_.rules.transfers_queue_first = chance(70);
    }
    config_.connector = connector;
  }

  void add(Scheduler& scheduler, RequestId id) {
    std::vector<ContentSegment> prompt;
    RequestSpec spec;
    spec.id = id;
    spec.priority = number(0, 2);
    spec.prompt_len = Tokens{number(1, 100)};
    spec.max_output = Tokens{number(1, 40)};
    if (chance(70)) {
      prompt.push_back({static_cast<std::uint64_t>(number(1, 3)), Tokens{number(1, 90)}});
      spec.output_content = static_cast<std::uint64_t>(number(1, 5));
    }
    spec.prompt = prompt;
    spec.transfer.remote = static_cast<Remote>(number(0, 2));
    if (chance(10)) {
      spec.transfer.max_load_tokens = Tokens{number(0, 60)};
      spec.transfer.max_offload_tokens = Tokens{number(0, 60)};
    }
    scheduler.add(spec);
  }

  bool schedules_within(Scheduler& scheduler, Workers& workers, std::int64_t rounds) {
    for (std::int64_t round = 0; round < rounds; ++round) {
      if (step(scheduler, workers) > 0) {
        return true;
      }
    }
    return false;
  }

  // Requests scheduled.
  std::int64_t step(Scheduler& scheduler, Workers& workers) {
    const StepPlan& plan = scheduler.schedule();
    const std::int64_t scheduled = plan.requests;
    workers.start(plan.transfers);
    scheduler.check_conservation();
    if (scheduler.batches_in_flight() == scheduler.depth()) {
      scheduler.complete(workers.end_round());
      scheduler.check_conservation();
    }
    return scheduled;
  }

  SchedulerConfig config_;
};

TEST_F(ConnectorProperty, EveryBlockComesBack) {
  for (std::int64_t seed = 0; seed < property_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    current_seed = seed;
    ConnectorCase(seed).run();
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace oomcast::vllm
