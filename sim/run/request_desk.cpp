#include "sim/run/request_desk.hpp"

#include <algorithm>

namespace oomcast {
namespace {

constexpr std::int64_t kProgressEvery = 4096;  // requests
// Rows of requests that come after a run has ended.
constexpr std::int64_t kMostUnserved = 1'000'000;

}  // namespace

std::optional<FineSpan> RequestDesk::ask_for_arrival() const {
  const auto due = stream_.next_arrival();
  next_arrival_ = due ? std::optional(since_start(*due)) : std::nullopt;
  return *next_arrival_;
}

const workloads::TraceRequest& RequestDesk::take() {
  stream_.take(request_);
  next_arrival_.reset();
  request_.index = offered_++;
  RequestRow& row = log_.open(request_.index);
  row.id = request_.id;
  row.arrival = request_.arrival;
  row.input = request_.input;
  row.output = request_.output;
  row.warm_up = request_.warm_up;
  if (!request_.warm_up && !began_) {
    began_ = request_.arrival;
  }
  if (request_.patience) {
    hang_ups_.push({since_start(request_.arrival + *request_.patience), request_.index});
  }
  if (options_.progress && offered_ % kProgressEvery == 0) {
    options_.progress(offered_);
  }
  return request_;
}

std::optional<FineSpan> RequestDesk::next_of_both() {
  while (!hang_ups_.empty() && !log_.is_open(hang_ups_.top().index)) {
    hang_ups_.pop();
  }
  const auto arrival = next_arrival();
  return !hang_ups_.empty() && gives_up_before(arrival) ? hang_ups_.top().at : arrival;
}

std::int64_t RequestDesk::take_hang_up() {
  const std::int64_t index = hang_ups_.top().index;
  hang_ups_.pop();
  return index;
}

// Only clients that wait for answers need to hear of them.
void RequestDesk::answered(std::int64_t index, SimTime at) {
  if (stream_.is_closed_loop()) {
    stream_.on_finished(index, at);
    next_arrival_.reset();
  }
}

void RequestDesk::refuse(std::int64_t index, RequestOutcome outcome, SimTime at) {
  RequestRow& row = log_.at(index);
  row.outcome = outcome;
  row.output = Tokens{0};
  answered(index, at);
  log_.close(index);
}

void RequestDesk::finish(std::int64_t index, RequestOutcome outcome, Tokens output, SimTime at) {
  RequestRow& row = log_.at(index);
  row.finish = at;
  row.outcome = outcome;
  row.output = output;
  last_finish_ = at;
  answered(index, at);
  log_.close(index);
}

void RequestDesk::close() {
  // What was to come after a warm-up comes although that is not answered.
  const auto end_warm_up = [this](const RequestRow& row) {
    if (row.warm_up) {
      answered(row.index, std::max(row.arrival, last_finish_));
    }
  };
  log_.for_each_open([&](RequestRow& row) {
    end_warm_up(row);
    if (row.outcome == RequestOutcome::kNotAdmitted && row.first_scheduled != RequestRow::kNever) {
      row.outcome = RequestOutcome::kInterrupted;
    }
  });
  log_.close_all();
  // A generator may have more than a disk holds.
  for (std::int64_t left = kMostUnserved; left > 0 && stream_.next_arrival(); --left) {
    const std::int64_t index = take().index;
    end_warm_up(row(index));
    log_.close(index);
  }
  const SimTime began = began_.value_or(SimTime{});
  totals_.makespan = last_finish_ > began ? last_finish_ - began : Nanos{0};
}

void give_up(ServingEngine& engine, RequestDesk& desk, std::int64_t index, SimTime at) {
  const Abort abort = engine.abort(static_cast<RequestId>(index));
  if (abort.output) {
    desk.finish(index, RequestOutcome::kAborted, *abort.output, at);
  }
}

void DeskListener::admitted(const Admission& admission, SimTime at) {
  if (!admission.resumed) {
    RequestRow& row = row_of(admission.id);
    row.first_scheduled = at;
    row.cached = admission.hit;
  }
}

void DeskListener::ended(const EndedRequest& request, SimTime at) {
  const RequestRow& row = row_of(request.id);
  desk_.finish(row.index, request.outcome,
               request.output.value_or(std::min(row.output, max_model_len_ - row.input)), at);
}

}  // namespace oomcast
