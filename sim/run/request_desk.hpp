// Where requests of a stream come in and answers go out, whoever serves them: one row of the log
// for each, by index.
#pragma once

#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "sim/latency/fine_time.hpp"
#include "sim/run/engine_loop.hpp"
#include "sim/run/replay.hpp"
#include "sim/run/request_log.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast {

constexpr FineSpan since_start(SimTime at) { return FineSpan{at.since_start()}; }
constexpr SimTime instant(FineSpan since_start) { return SimTime{since_start.floor()}; }

class RequestDesk {
 public:
  // All must outlive the desk.
  RequestDesk(workloads::RequestStream& stream, RequestSink& sink, const ReplayOptions& options,
              RunTotals& totals, Digest& digest)
      : stream_(stream), options_(options), totals_(totals), log_(sink, totals, digest) {}

  // The next request that is known to come; nullopt: none, unless another is answered before.
  [[nodiscard]] std::optional<FineSpan> next_arrival() const {
    return next_arrival_ ? *next_arrival_ : ask_for_arrival();
  }
  [[nodiscard]] bool is_closed_loop() const { return stream_.is_closed_loop(); }
  // The next thing that clients are known to do: a request comes, or one is given up.
  [[nodiscard]] std::optional<FineSpan> next_event() {
    return hang_ups_.empty() ? next_arrival() : next_of_both();
  }
  // Whether a request is given up before the next one comes; call next_event() first.
  [[nodiscard]] bool gives_up_next() const {
    return !hang_ups_.empty() && gives_up_before(next_arrival());
  }
  // The request given up.
  std::int64_t take_hang_up();

  // Takes it in and opens its row. Valid until the next call; `index` is its row's.
  const workloads::TraceRequest& take();

  [[nodiscard]] RequestRow& row(std::int64_t index) { return log_.at(index); }
  // The request was refused, or came to an end with so many output tokens.
  void refuse(std::int64_t index, RequestOutcome outcome, SimTime at);
  void finish(std::int64_t index, RequestOutcome outcome, Tokens output, SimTime at);

  // The run is over. Requests that never reached a server count as not admitted too.
  void close();

 private:
  [[nodiscard]] std::optional<FineSpan> ask_for_arrival() const;
  std::optional<FineSpan> next_of_both();
  // At one instant requests come first.
  [[nodiscard]] bool gives_up_before(const std::optional<FineSpan>& arrival) const {
    return !arrival || hang_ups_.top().at < *arrival;
  }
  void answered(std::int64_t index, SimTime at);

  workloads::RequestStream& stream_;
  const ReplayOptions& options_;
  RunTotals& totals_;
  RequestLog log_;
  workloads::TraceRequest request_;
  struct HangUp {
    FineSpan at;
    std::int64_t index = 0;
    friend bool operator>(const HangUp& left, const HangUp& right) {
      return left.at != right.at ? left.at > right.at : left.index > right.index;
    }
  };
  // Of requests that were open when it was last looked at; some may have ended since.
  std::priority_queue<HangUp, std::vector<HangUp>, std::greater<>> hang_ups_;
  // What the stream said, until something can change it.
  mutable std::optional<std::optional<FineSpan>> next_arrival_;
  std::int64_t offered_ = 0;
  std::optional<SimTime> began_;  // the first request that counts
  SimTime last_finish_;
};

// The client of this request, if the engine has it, hangs up.
void give_up(ServingEngine& engine, RequestDesk& desk, std::int64_t index, SimTime at);

// Rows of the log from what happens to requests on one engine, whose ids are their rows' indices.
class DeskListener final : public RoundListener {
 public:
  // The desk must outlive it.
  DeskListener(RequestDesk& desk, Tokens max_model_len)
      : desk_(desk), max_model_len_(max_model_len) {}

  void admitted(const Admission& admission, SimTime at) override;
  void preempted(RequestId id) override { ++row_of(id).preemptions; }
  void first_token(RequestId id, SimTime at) override { row_of(id).first_token = at; }
  void ended(const EndedRequest& request, SimTime at) override;
  [[nodiscard]] bool answers_ends() const override { return desk_.is_closed_loop(); }

 private:
  RequestRow& row_of(RequestId id) { return desk_.row(static_cast<std::int64_t>(id)); }

  RequestDesk& desk_;
  Tokens max_model_len_;
};

}  // namespace oomcast
