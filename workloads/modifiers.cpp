// Streams made of streams: the first N, another rate, another tokenizer, several as one, a closed
// loop.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "sim/core/error.hpp"
#include "workloads/distribution.hpp"
#include "workloads/record.hpp"
#include "workloads/request_stream.hpp"
#include "workloads/row_reader.hpp"

namespace oomcast::workloads {
namespace {

class LimitedStream : public RequestStream {
 public:
  LimitedStream(std::unique_ptr<RequestStream> inner, std::int64_t count)
      : inner_(std::move(inner)), left_(count) {}

  std::optional<SimTime> next_arrival() override {
    return left_ > 0 ? inner_->next_arrival() : std::nullopt;
  }
  void take(TraceRequest& out) override {
    OOMCAST_CHECK(left_ > 0, "the stream is over");
    --left_;
    inner_->take(out);
  }
  bool at_end() override { return left_ == 0 || inner_->at_end(); }
  void on_finished(std::int64_t index, SimTime now) override { inner_->on_finished(index, now); }
  [[nodiscard]] bool is_closed_loop() const override { return inner_->is_closed_loop(); }
  [[nodiscard]] ReadSummary summary() const override { return inner_->summary(); }

 private:
  std::unique_ptr<RequestStream> inner_;
  std::int64_t left_;
};

// A positive factor as a fraction of whole numbers.
struct Ratio {
  std::int64_t over = 1;
  std::int64_t under = 1;
};

constexpr std::int64_t kFastest = 1'000'000'000;
constexpr std::int64_t kLongest = 100;
constexpr std::int64_t kLongestWait = 1'000'000'000;  // seconds

Ratio ratio_of(std::string_view factor, const char* option, std::int64_t most) {
  constexpr int kDigits = 9;
  constexpr std::int64_t kUnit = 1'000'000'000;
  const auto value = scaled_decimal(factor, kDigits);
  if (!value || *value <= 0 || *value > most * kUnit) {
    throw ConfigError(
        Problem{"command line", option, std::string(factor),
                fmt::format("a number above 0 and at most {}, such as 2 or 0.5", most), ""});
  }
  const std::int64_t common = std::gcd(*value, kUnit);
  return {*value / common, kUnit / common};
}

__extension__ using Wide = __int128;

std::int64_t scaled(std::int64_t value, std::int64_t over, std::int64_t under, bool round_up) {
  Wide product = static_cast<Wide>(value) * over;
  if (round_up) {
    product += under - 1;
  }
  const Wide result = product / under;
  if (result > INT64_MAX || result < INT64_MIN) {
    throw ArithmeticOverflow("a time or length scaled beyond 64 bits");
  }
  return static_cast<std::int64_t>(result);
}

class ScaledStream : public RequestStream {
 public:
  ScaledStream(std::unique_ptr<RequestStream> inner, Ratio factor, std::string written)
      : inner_(std::move(inner)), factor_(factor), written_(std::move(written)) {}

  std::optional<SimTime> next_arrival() override {
    const auto arrival = inner_->next_arrival();
    return arrival ? std::optional(SimTime{faster(arrival->since_start())}) : std::nullopt;
  }
  void take(TraceRequest& out) override {
    inner_->take(out);
    out.arrival = SimTime{faster(out.arrival.since_start())};
    out.think = faster(out.think);
  }
  bool at_end() override { return inner_->at_end(); }
  void on_finished(std::int64_t index, SimTime now) override {
    // Rounded up, so that what follows never comes before `now` on the faster clock.
    const std::int64_t inner_now =
        scaled(now.since_start().count(), factor_.over, factor_.under, true);
    inner_->on_finished(index, SimTime{Nanos{inner_now}});
  }
  [[nodiscard]] bool is_closed_loop() const override { return inner_->is_closed_loop(); }
  [[nodiscard]] ReadSummary summary() const override {
    ReadSummary summary = inner_->summary();
    summary.notes.push_back("times divided by " + written_);
    return summary;
  }

 private:
  [[nodiscard]] Nanos faster(Nanos time) const {
    return Nanos{scaled(time.count(), factor_.under, factor_.over, false)};
  }

  std::unique_ptr<RequestStream> inner_;
  Ratio factor_;
  std::string written_;
};

// The same requests at the same times, each of them changed.
class ChangedRequests : public RequestStream {
 public:
  // `note`: what the summary says of it.
  ChangedRequests(std::unique_ptr<RequestStream> inner, std::string note)
      : inner_(std::move(inner)), note_(std::move(note)) {}

  std::optional<SimTime> next_arrival() override { return inner_->next_arrival(); }
  void take(TraceRequest& out) override {
    inner_->take(out);
    change(out);
  }
  bool at_end() override { return inner_->at_end(); }
  void on_finished(std::int64_t index, SimTime now) override { inner_->on_finished(index, now); }
  [[nodiscard]] bool is_closed_loop() const override { return inner_->is_closed_loop(); }
  [[nodiscard]] ReadSummary summary() const override {
    ReadSummary summary = inner_->summary();
    summary.notes.push_back(note_);
    return summary;
  }

 private:
  virtual void change(TraceRequest& request) = 0;

  std::unique_ptr<RequestStream> inner_;
  std::string note_;
};

// A prefix of n tokens becomes one of n x factor, rounded up, whatever prompt it stands in: what
// prompts share they go on sharing, and none becomes empty.
class LongerPrompts final : public ChangedRequests {
 public:
  LongerPrompts(std::unique_ptr<RequestStream> inner, Ratio factor, std::string_view written)
      : ChangedRequests(std::move(inner), fmt::format("prompts {} times as long", written)),
        factor_(factor) {}

 private:
  void change(TraceRequest& request) override {
    std::int64_t end = 0;
    std::int64_t end_before = 0;
    ContentSegment before;
    for (std::size_t i = 0; i < request.content.size(); ++i) {
      ContentSegment& piece = request.content[i];
      const ContentSegment own = piece;
      end += own.length.count();
      piece.length = Tokens{longer(end) - longer(end_before)};
      piece.offset = i > 0 && before.continues(own)
                         ? request.content[i - 1].offset + request.content[i - 1].length.count()
                         : longer(own.offset);
      before = own;
      end_before = end;
    }
    request.input = Tokens{longer(request.input.count())};
  }
  [[nodiscard]] std::int64_t longer(std::int64_t tokens) const {
    return scaled(tokens, factor_.over, factor_.under, true);
  }

  Ratio factor_;
};

class ImpatientClients final : public ChangedRequests {
 public:
  ImpatientClients(std::unique_ptr<RequestStream> inner, Nanos most, std::string_view written)
      : ChangedRequests(std::move(inner), fmt::format("clients give up after {} s", written)),
        most_(most) {}

 private:
  void change(TraceRequest& request) override {
    request.patience = std::min(request.patience.value_or(most_), most_);
  }

  Nanos most_;
};

class DrawnOutputs final : public ChangedRequests {
 public:
  DrawnOutputs(std::unique_ptr<RequestStream> inner, const std::string& written, std::uint64_t seed)
      : ChangedRequests(std::move(inner), "output lengths drawn: " + written),
        lengths_(parse_distribution(written, "--output")),
        random_(random_stream(seed, "workload.output")) {}

 private:
  void change(TraceRequest& request) override {
    const double drawn = std::round(lengths_->draw(random_));
    request.output =
        Tokens{static_cast<std::int64_t>(std::clamp(drawn, 1.0, static_cast<double>(kMaxTokens)))};
  }

  std::unique_ptr<Distribution> lengths_;
  RandomStream random_;
};

class MergedStream : public RequestStream {
 public:
  explicit MergedStream(std::vector<std::unique_ptr<RequestStream>> streams)
      : streams_(std::move(streams)) {}

  std::optional<SimTime> next_arrival() override {
    std::optional<SimTime> earliest;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const auto arrival = streams_[i]->next_arrival();
      if (arrival && (!earliest || *arrival < *earliest)) {
        earliest = arrival;
        chosen_ = i;
      }
    }
    return earliest;
  }
  void take(TraceRequest& out) override {
    OOMCAST_CHECK(next_arrival().has_value(), "no request is known");
    RequestStream& stream = *streams_[chosen_];
    stream.take(out);
    if (stream.is_closed_loop()) {
      sources_.emplace(index_, Source{chosen_, out.index});
    }
    out.index = index_++;
  }
  bool at_end() override {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& stream) { return stream->at_end(); });
  }
  void on_finished(std::int64_t index, SimTime now) override {
    if (const auto found = sources_.find(index); found != sources_.end()) {
      streams_[found->second.stream]->on_finished(found->second.index, now);
      sources_.erase(found);
    }
  }
  [[nodiscard]] bool is_closed_loop() const override {
    return std::any_of(streams_.begin(), streams_.end(),
                       [](const auto& stream) { return stream->is_closed_loop(); });
  }
  [[nodiscard]] ReadSummary summary() const override;

 private:
  struct Source {
    std::size_t stream;
    std::int64_t index;
  };
  std::vector<std::unique_ptr<RequestStream>> streams_;
  std::unordered_map<std::int64_t, Source> sources_;  // in flight, of closed-loop streams
  std::size_t chosen_ = 0;
  std::int64_t index_ = 0;
};

ReadSummary MergedStream::summary() const {
  ReadSummary sum;
  for (const auto& stream : streams_) {
    const ReadSummary one = stream->summary();
    sum.format += (sum.format.empty() ? "" : " + ") + one.format;
    add_summary(sum, one);
    sum.origin = sum.origin.empty() ? one.origin : sum.origin;
  }
  return sum;
}

class WarmedUp : public RequestStream {
 public:
  WarmedUp(std::unique_ptr<RequestStream> warm_up, std::unique_ptr<RequestStream> inner)
      : warm_up_(std::move(warm_up)), inner_(std::move(inner)) {}

  std::optional<SimTime> next_arrival() override {
    if (!warm_up_->at_end()) {
      return warm_up_->next_arrival();
    }
    if (unanswered_ > 0) {
      return std::nullopt;
    }
    const auto arrival = inner_->next_arrival();
    return arrival ? std::optional(*arrival + begin_) : std::nullopt;
  }
  void take(TraceRequest& out) override {
    if (!warm_up_->at_end()) {
      warm_up_->take(out);
      out.warm_up = true;
      ++first_;
      ++unanswered_;
      return;
    }
    inner_->take(out);
    out.warm_up = false;
    out.index += first_;
    out.arrival = out.arrival + begin_;
  }
  bool at_end() override { return warm_up_->at_end() && inner_->at_end(); }
  void on_finished(std::int64_t index, SimTime now) override {
    if (index >= first_) {
      inner_->on_finished(index - first_, SimTime{now.since_start() - begin_});
      return;
    }
    warm_up_->on_finished(index, now);
    if (--unanswered_ == 0) {
      begin_ = now - SimTime{};
    }
  }
  [[nodiscard]] bool is_closed_loop() const override { return true; }
  [[nodiscard]] ReadSummary summary() const override {
    ReadSummary summary = inner_->summary();
    summary.notes.push_back(fmt::format("{} requests came before, to warm up", first_));
    return summary;
  }

 private:
  std::unique_ptr<RequestStream> warm_up_;
  std::unique_ptr<RequestStream> inner_;
  std::int64_t first_ = 0;  // index of the first request after them
  std::int64_t unanswered_ = 0;
  Nanos begin_;
};

// A client takes its next request as soon as the last one was answered, so that who asks what does
// not depend on when anyone looks.
class ClosedLoop : public RequestStream {
 public:
  ClosedLoop(std::unique_ptr<RequestStream> inner, std::int64_t clients, Nanos think)
      : inner_(std::move(inner)), think_(think), clients_(clients), idle_(clients) {}

  std::optional<SimTime> next_arrival() override {
    start_clients();
    return ready_.empty() ? std::nullopt : std::optional(ready_.front().arrival);
  }
  void take(TraceRequest& out) override {
    OOMCAST_CHECK(next_arrival().has_value(), "no request is known");
    std::pop_heap(ready_.begin(), ready_.end(), later);
    std::swap(out, ready_.back());
    ready_.pop_back();
    // The order of delivery, not of assignment, gives the index.
    out.index = index_++;
    ++in_flight_;
  }
  bool at_end() override {
    start_clients();
    return ready_.empty() && inner_->at_end();
  }
  void on_finished(std::int64_t /*index*/, SimTime now) override {
    OOMCAST_CHECK(in_flight_ > 0, "more requests finished than were taken");
    --in_flight_;
    give_next(now + think_);
  }
  [[nodiscard]] bool is_closed_loop() const override { return true; }
  [[nodiscard]] ReadSummary summary() const override {
    ReadSummary summary = inner_->summary();
    summary.notes.push_back(fmt::format("closed loop of {} clients", clients_));
    return summary;
  }

 private:
  static bool later(const TraceRequest& left, const TraceRequest& right) {
    return left.arrival != right.arrival ? left.arrival > right.arrival : left.index > right.index;
  }

  void start_clients() {
    for (; idle_ > 0; --idle_) {
      give_next(SimTime{});
    }
  }
  void give_next(SimTime at) {
    if (inner_->at_end()) {
      return;
    }
    OOMCAST_CHECK(inner_->next_arrival().has_value(), "an open-loop stream knows its next request");
    TraceRequest request;
    inner_->take(request);
    request.arrival = at + request.think;
    ready_.push_back(std::move(request));
    std::push_heap(ready_.begin(), ready_.end(), later);
  }

  std::unique_ptr<RequestStream> inner_;
  Nanos think_;
  std::int64_t clients_;
  std::int64_t idle_;
  std::int64_t in_flight_ = 0;
  std::int64_t index_ = 0;
  std::vector<TraceRequest> ready_;  // heap, earliest first; at most one a client
};

}  // namespace

std::unique_ptr<RequestStream> limit_requests(std::unique_ptr<RequestStream> stream,
                                              std::int64_t count) {
  if (count < 1) {
    throw ConfigError(
        Problem{"command line", "--requests", fmt::format("{}", count), "at least 1", ""});
  }
  return std::make_unique<LimitedStream>(std::move(stream), count);
}

std::unique_ptr<RequestStream> scale_rate(std::unique_ptr<RequestStream> stream,
                                          std::string_view factor) {
  return std::make_unique<ScaledStream>(
      std::move(stream), ratio_of(factor, "--rate-scale", kFastest), std::string(factor));
}

std::unique_ptr<RequestStream> scale_prompts(std::unique_ptr<RequestStream> stream,
                                             std::string_view factor) {
  return std::make_unique<LongerPrompts>(
      std::move(stream), ratio_of(factor, "--prompt-scale", kLongest), std::string(factor));
}

std::unique_ptr<RequestStream> limit_patience(std::unique_ptr<RequestStream> stream,
                                              std::string_view seconds) {
  constexpr std::int64_t kNanosPerSecond = 1'000'000'000;
  const Ratio ratio = ratio_of(seconds, "--timeout", kLongestWait);
  return std::make_unique<ImpatientClients>(
      std::move(stream), Nanos{scaled(kNanosPerSecond, ratio.over, ratio.under, false)}, seconds);
}

std::unique_ptr<RequestStream> draw_outputs(std::unique_ptr<RequestStream> stream,
                                            const std::string& distribution, std::uint64_t seed) {
  return std::make_unique<DrawnOutputs>(std::move(stream), distribution, seed);
}

std::unique_ptr<RequestStream> warmed_up(std::unique_ptr<RequestStream> warm_up,
                                         std::unique_ptr<RequestStream> stream) {
  return std::make_unique<WarmedUp>(std::move(warm_up), std::move(stream));
}

std::unique_ptr<RequestStream> merge_streams(std::vector<std::unique_ptr<RequestStream>> streams) {
  OOMCAST_CHECK(!streams.empty(), "nothing to merge");
  return streams.size() == 1 ? std::move(streams[0])
                             : std::make_unique<MergedStream>(std::move(streams));
}

std::unique_ptr<RequestStream> close_loop(std::unique_ptr<RequestStream> stream,
                                          std::int64_t clients, Nanos think) {
  constexpr std::int64_t kMostClients = 1'000'000;
  if (clients < 1 || clients > kMostClients) {
    throw ConfigError(Problem{"command line", "--closed-loop", fmt::format("{}", clients),
                              "a number of clients from 1 to 1,000,000", ""});
  }
  if (stream->is_closed_loop()) {
    throw ConfigError(Problem{"command line", "--closed-loop", "",
                              "a trace with arrival times or plain lengths",
                              "sessions already wait for their answers"});
  }
  return std::make_unique<ClosedLoop>(std::move(stream), clients, think);
}

}  // namespace oomcast::workloads
