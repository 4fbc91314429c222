// Inside of the scheduler. Internal to this folder.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "sim/engines/trtllm/scheduler.hpp"
#include "sim/kv/block_hash.hpp"
#include "sim/kv/block_pool.hpp"

namespace oomcast::trtllm {

struct Request {
  RequestId id = 0;
  std::int64_t prompt = 0;
  std::int64_t max_output = 0;
  std::int64_t known = 0;  // tokens to compute before it generates: the prompt, after a pause the
                           // output too
  std::int64_t computed = 0;  // tokens with keys and values, or about to have them
  std::int64_t launched = 0;  // output tokens whose step has been launched
  std::int64_t sampled = 0;   // ... whose result is here
  bool started = false;       // holds blocks
  bool resumed = false;
  bool has_content = false;
  bool aborted = false;
  std::vector<kv::BlockId> table;
  kv::HashChain hashes;

  [[nodiscard]] bool generates() const { return started && computed >= known; }
  // Its last token is on its way.
  [[nodiscard]] bool completes() const { return launched >= max_output; }
};

class Scheduler::Impl {
 public:
  explicit Impl(const SchedulerConfig& config);

  Added add(const RequestSpec& spec);
  Abort abort(RequestId id);
  const StepPlan& schedule();
  const StepOutput& complete();
  void drop_empty_batches();

  [[nodiscard]] std::int64_t depth() const { return config_.overlap ? 2 : 1; }
  [[nodiscard]] std::int64_t batches_in_flight() const { return std::ssize(in_flight_); }
  [[nodiscard]] bool work_in_flight() const;
  [[nodiscard]] bool idle() const { return active_.empty() && waiting_.empty(); }
  [[nodiscard]] bool stalled() const { return plan_.requests == 0 && !idle() && !work_in_flight(); }
  [[nodiscard]] std::int64_t steady_steps() const;
  [[nodiscard]] SteadyShape steady_shape() const;
  const SteadyJump& advance_steady(std::int64_t n);
  [[nodiscard]] PoolCounts blocks() const;
  [[nodiscard]] std::int64_t running() const;
  [[nodiscard]] std::int64_t waiting() const;
  [[nodiscard]] std::int64_t pauses() const { return pauses_; }
  [[nodiscard]] std::int64_t prefix_hit_tokens() const { return hit_tokens_; }
  [[nodiscard]] std::uint64_t state_digest() const;
  void check_conservation() const;

 private:
  using Slot = std::size_t;
  // A request with its tokens of a step.
  struct Piece {
    Slot slot = 0;
    std::int64_t tokens = 0;
  };
  // A request whose next token a batch in flight yields.
  struct Row {
    Slot slot = 0;
    bool ends_context = false;
  };
  struct Batch {
    std::vector<Row> rows;
    std::int64_t tokens = 0;
  };

  [[nodiscard]] const Request& at(Slot slot) const { return slots_[slot]; }
  Request& at(Slot slot) { return slots_[slot]; }
  [[nodiscard]] std::int64_t block() const { return config_.tokens_per_block.count(); }
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return div_ceil(tokens, block());
  }

  // Who may run (C++ capacity schedulers): fills allowed_.
  void fetch();
  void guarantee_no_evict();
  void maximise_utilization();
  [[nodiscard]] std::int64_t remaining_blocks(const Request& request) const;
  [[nodiscard]] std::int64_t blocks_of_step(const Request& request) const;
  [[nodiscard]] std::int64_t own_blocks(const Request& request) const;
  [[nodiscard]] kv::BlockKey first_new_block(Request& request) const;
  void pause(Slot slot);

  // With how many tokens (micro-batch scheduler): fills contexts_ and generations_.
  void choose_tokens();
  void cut_chunks(std::int64_t capacity);

  // Blocks and numbers of the step.
  void launch();
  void start_sequence(Request& request);
  void run_context(const Piece& piece, Batch& batch);
  void run_generation(Slot slot, Batch& batch);
  void take_blocks(Request& request, std::int64_t count);

  // The host's pool (scheduler_host.cpp).
  kv::BlockId take_block();
  void offload(kv::BlockId block);
  [[nodiscard]] kv::BlockId claim(kv::BlockKey key, std::int64_t tokens);
  [[nodiscard]] bool known(kv::BlockKey key) const;

  void store(Request& request, std::int64_t tokens);
  void release(Request& request);
  void finish(Slot slot);

  struct Growth {
    std::int64_t round = 0;
    Slot slot = 0;
  };
  [[nodiscard]] std::int64_t growth_within(std::int64_t rounds) const;

  SchedulerConfig config_;
  kv::BlockPool pool_;
  std::optional<kv::BlockPool> host_;
  std::vector<Request> slots_;
  std::vector<Slot> spare_;
  std::vector<Slot> active_;  // in order of arrival
  std::deque<Slot> waiting_;  // not fetched yet
  std::deque<Batch> in_flight_;
  std::vector<Slot> allowed_;
  std::vector<Piece> contexts_;
  std::vector<Slot> generations_;
  StepPlan plan_;
  StepOutput output_;
  SteadyJump jump_;
  std::vector<Growth> growth_;
  std::int64_t step_ = 0;
  std::int64_t pauses_ = 0;
  std::int64_t hit_tokens_ = 0;
  // Whether the next round will choose as the last one did, as long as nobody ends or comes.
  bool settled_ = false;
};

}  // namespace oomcast::trtllm
