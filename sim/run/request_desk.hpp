// Where requests of a stream come in and answers go out, whoever serves them: one row of the log
// for each, by index.
#pragma once

#include <optional>

#include "sim/latency/fine_time.hpp"
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
  void answered(std::int64_t index, SimTime at);

  workloads::RequestStream& stream_;
  const ReplayOptions& options_;
  RunTotals& totals_;
  RequestLog log_;
  workloads::TraceRequest request_;
  // What the stream said, until something can change it.
  mutable std::optional<std::optional<FineSpan>> next_arrival_;
  std::int64_t offered_ = 0;
  SimTime last_finish_;
};

}  // namespace oomcast
