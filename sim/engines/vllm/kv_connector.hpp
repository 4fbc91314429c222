// The scheduler's side of a KV connector: what vLLM calls KVConnectorBase_V1 in role SCHEDULER.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/engines/vllm/connector.hpp"
#include "sim/engines/vllm/scheduler_config.hpp"
#include "sim/engines/vllm/scheduler_request.hpp"

namespace oomcast::vllm {

class KvConnector {
 public:
  // What the connector can bring of a request's tokens beyond those that are here.
  struct Match {
    bool later = false;  // not known yet: ask again in a later step
    std::int64_t tokens = 0;
    bool async = false;  // arrives while others run
  };
  // A request of this step, with its tables as they were before.
  struct Scheduled {
    Request* request = nullptr;
    std::int64_t tokens = 0;
    ScheduledRequest::Kind kind = ScheduledRequest::Kind::kContinued;
    const std::int64_t* table_sizes = nullptr;  // one a group; 0 of new and resumed requests

    // Blocks of group g that are new in this step.
    [[nodiscard]] std::span<const kv::BlockId> new_blocks(std::size_t g) const {
      const std::vector<kv::BlockId>& table = request->groups[g].blocks;
      return std::span(table).subspan(static_cast<std::size_t>(table_sizes[g]));
    }
  };
  enum class End { kFinished, kAborted, kFailed };

  // `config.connector` is set; `hash_block_size` as the block pool uses it.
  static std::unique_ptr<KvConnector> make(const SchedulerConfig& config,
                                           std::int64_t hash_block_size);
  virtual ~KvConnector() = default;

  // Before the request's content is known; may change what is asked.
  virtual void added(Request& /*request*/) {}
  // `local` tokens were found here.
  virtual Match match(Request& request, std::int64_t local) = 0;
  // Blocks were allocated for `external` of the matched tokens, behind those with a hash.
  virtual void allocated(Request& request, std::int64_t external) = 0;
  virtual void preempted(const Request& /*request*/) {}
  // Whether the blocks must stay until they are sent; appends what is offered to the other side.
  virtual bool ended(Request& request, End end, std::vector<Handoff>& handoffs) = 0;
  // At the end of schedule(), before computed tokens advance.
  virtual void plan_step(std::span<const Scheduled> scheduled, StepTransfers& transfers) = 0;
  // The request whose asynchronous load is over with this job.
  virtual std::optional<RequestId> job_done(JobId job);
  // A request that ended() kept has sent its blocks, and lets them go.
  virtual void sent(const Request& /*request*/) {}
  [[nodiscard]] virtual bool jobs_under_way() const { return false; }
  virtual void count(TransferCounts& /*counts*/) const {}
};

}  // namespace oomcast::vllm
